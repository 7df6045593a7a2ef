"""Who calls: the one thing that every decision about a request starts from."""

from __future__ import annotations

import dataclasses

from determined import errors
from determined.master.records import User


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Who calls, and what their credential is good for.

    ``kind`` is "anyone", "session", "access" or "allocation". An allocation's token stands for the run itself, not
    for the person who started it: ``user`` is None.
    """

    kind: str
    user: User | None = None
    token_id: int | None = None
    allocation_id: str | None = None
    scopes: frozenset[str] = frozenset()
    expires_at: float | None = None

    @property
    def user_id(self) -> int | None:
        """The user's id; None for an allocation."""
        return None if self.user is None else self.user.id

    @property
    def is_admin(self) -> bool:
        """Whether administration is allowed, to this person and by this credential."""
        return self.user is not None and self.user.admin and "admin" in self.scopes

    @property
    def name(self) -> str:
        """For logs."""
        return self.user.username if self.user else self.allocation_id or self.kind

    def require_owner(self, user_id: int | None, what: str) -> None:
        """Only the owner of a thing, or an administrator, may change it; raises Forbidden for others."""
        if self.is_admin or (self.user is not None and self.user.id == user_id):
            return
        raise errors.Forbidden(f"{what} belongs to somebody else; its owner or an administrator may do this")

    def require_admin(self, what: str) -> None:
        """Raises Forbidden for all but administrators."""
        if not self.is_admin:
            raise errors.Forbidden(f"only an administrator may {what}")


ANYONE = Identity("anyone")

from __future__ import annotations

import sys

import pytest

import determined.transformers


def test_says_what_to_install_when_the_transformers_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("determined.transformers.callback")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(determined.transformers), "DetCallback", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)

    with pytest.raises(ImportError, match=r"pip install 'resolute\[transformers\]'"):
        from determined.transformers import DetCallback  # noqa: F401


def test_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Callback'"):
        determined.transformers.Callback  # type: ignore[attr-defined]  # noqa: B018

"""Tests: unit (mirrors src), conformance (the seams), flow (whole processes), parity, docs (pages that run)."""

"""The errors of an export."""

from __future__ import annotations

from client_agent.errors import AgentError


class ExportUnsupported(AgentError):
    """The format of an export cannot hold this adapter or this architecture."""


class ExportInexact(AgentError):
    """An exported model has another held-out loss than the model in training."""


class UploadRefused(AgentError):
    """The hub did not accept an export."""

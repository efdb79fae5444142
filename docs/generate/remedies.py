"""What to do after each error of the coordinator, by the slug of its problem type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SEND_AGAIN = "Send the request again."
_ASK_FOR_TOKEN = "Ask an admin for a token of the role that the route needs."
_WRITE_BODY_ANEW = (
    "Write the body as [wire format](wire-format.md) describes; the same bytes are refused again."
)
_ENCODE_AGAIN = (
    "Encode the update again from the [recipe](wire-format.md#recipes) of the plan; the same bytes "
    "are refused again."
)

REMEDIES: Final[Mapping[str, str]] = {
    "anchors-missing": "Store the texts with `tessera anchors put` before you start the federation.",
    "auth-missing": "People send `Authorization: Bearer TOKEN`; clients sign the request.",
    "authority-unknown": "Use a host name in `TESSERA_PUBLIC_NAMES`, or let the operator add yours.",
    "base-mismatch": "Download the weights of this round and train from them.",
    "body-incomplete": _SEND_AGAIN,
    "body-too-large": "Send less; for updates the plan's `limits.max_update_bytes` is the limit.",
    "busy": "Wait for the seconds in `Retry-After`, then send the request again.",
    "capability-missing": "Install a newer agent; this one would send its updates in clear.",
    "client-name-taken": (
        "Choose another name than `taken`, or pass `replace` to invalidate an unused token of this name."
    ),
    "clock-skew": "Synchronise the clock of the client (NTP). `server_time` is the coordinator's time.",
    "codec-corrupt": "Compress the body again, with a checksum.",
    "codec-trailing": "Send exactly one zstd frame.",
    "codec-truncated": _SEND_AGAIN,
    "codec-window": "Compress with a window of 8 MiB at most.",
    "content-encoding": "Use an encoding of `accepts`.",
    "credential-invalid": "Ask an admin for a new token; a revoked or expired one never becomes valid again.",
    "decompressed-too-large": "Send less; the limit follows from the adapter's layout.",
    "digest-mismatch": "Compute the digest of the bytes as sent, and send them again.",
    "digest-missing": "Send `Content-Digest: sha-256=:...:` (RFC 9530) with the body.",
    "enrolment-token-invalid": "Ask the operator for a new enrolment token; it is valid once, for one name.",
    "federation-state": (
        "Look at the state with `tessera federation show`, and start, resume or create a federation."
    ),
    "forbidden": _ASK_FOR_TOKEN,
    "head-too-large": "Send fewer or shorter header fields.",
    "identity-provider": "Wait for the seconds in `Retry-After`, then sign in again. Other tokens work.",
    "internal": (
        "Send the request again; if it fails again, send the `incident` to the operator, whose log has it."
    ),
    "key-revoked": (
        "Sign with the current key. If the client was revoked, ask the operator for an enrolment token."
    ),
    "layout-mismatch": (
        "Use the base model that the answer names, or one that an alignment pack aligns with it; all members "
        "of a sum have the same tensors."
    ),
    "malformed-json": "Send JSON without duplicate keys, comments or NaN.",
    "malformed-request": "Send a valid HTTP/1.1 request; check any proxy in between.",
    "masked-vector": "Send the masked vector in exactly the number of bytes that the terms require.",
    "media-type": "Use a media type of `accepts`.",
    "metadata": "Write the manifest of the body for this federation, round and client.",
    "method-not-allowed": "Use a method of the `Allow` field.",
    "name-looks-alike": (
        "Write the name as `taken` has it if both are of one organisation, person or federation; otherwise "
        "choose another name."
    ),
    "no-secure-sum": "Send an update; only a plan with `privacy.secure_sum` has sums.",
    "norm-exceeded": "Train with a lower rate, or create a federation with a larger `limits.max_norm`.",
    "not-found": "Check the ids. A client gets this answer for everything that is not its own.",
    "not-drawn": "Poll for the next round; the agent does.",
    "not-joined": "Join the round first; the agent continues with the next round.",
    "organisation-taken": "Nothing; the organisation takes part through its client that was ready first.",
    "pack-missing": "Run `tessera agent align`, which makes and stores the pack.",
    "phase-mismatch": "Fetch the status of the sum, and continue with the step that is due.",
    "pivot-pack-missing": "Wait for a client of the pivot, or make it: `tessera agent make-pivot-pack`.",
    "protocol-version": "Upgrade the older of coordinator and agent.",
    "quant-code": _ENCODE_AGAIN,
    "quant-scale": _ENCODE_AGAIN,
    "range": "Request a range within the size that `Content-Range` names.",
    "rate-limited": "Wait for the seconds in `Retry-After`, then send the request again.",
    "recipe": "Encode the update in the plan's recipe, or dense.",
    "reference-mismatch": "Send the update dense; the coordinator does not have its reference.",
    "replayed": (
        "Sign the request again, with a new nonce. If it was the first attempt, a proxy repeats requests."
    ),
    "request-timeout": (
        "Send the request again, faster than `TESSERA_UPLOAD_BYTES_PER_SECOND`; for slow networks the "
        "operator lowers this setting."
    ),
    "round-closed": "Nothing; the agent continues with the next round.",
    "secure-sum-required": "Upgrade the agent; newer agents report `ready` and take part in the sum.",
    "share-invalid": "Send the shares that the terms require; the same bytes are refused again.",
    "share-list": "Make one ciphertext for each other member of the answer to step 0.",
    "signature-invalid": "Check the key and the signed components; a new client enrols first.",
    "signature-profile": "Sign as [signed requests](wire-format.md#signed-requests) describes.",
    "signature-vector": "Send a sketch of `signature.dim` finite values that are not all zero.",
    "sparse-index": _ENCODE_AGAIN,
    "statement-invalid": "Sign the sets of the coordinator's answers; the same bytes are refused again.",
    "storage-full": "Repeat the request when the operator has freed space or lowered `TESSERA_KEEP_ROUNDS`.",
    "stream-length": _ENCODE_AGAIN,
    "target-too-long": "Shorten path and query to `limit` bytes.",
    "tensor-dtype": _WRITE_BODY_ANEW,
    "tensor-header": _WRITE_BODY_ANEW,
    "tensor-layout": _WRITE_BODY_ANEW,
    "tensor-nonfinite": "Train with a lower learning rate; values became infinite or NaN.",
    "tensor-schema": (
        "Send the tensors that the plan's adapter has, in its shapes; check that the agent runs this plan."
    ),
    "tokenizer-mismatch": (
        "Use the tokenizer files that were published with the base model, and for chats the same chat "
        "template; or ask the operator to revoke the members whose tokenizer is wrong."
    ),
    "unavailable": "Wait for the seconds in `Retry-After`. If it stays, the operator checks the database.",
    "upload-conflict": "Nothing; the content that was accepted first stays.",
    "validation": "Correct the fields in `errors`.",
    "weak-public-key": "Make a new key: move the key file away, and repeat the command.",
}

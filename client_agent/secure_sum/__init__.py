"""A member's part in the secure sum. Pure: messages in, messages or a refusal out; callers keep a journal."""

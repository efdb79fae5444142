"""The client's identity: membership, keys, and verification of the coordinator's manifests and roster."""

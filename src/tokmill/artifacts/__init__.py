"""The evidence: manifests, artifacts, tasks and steps, receipts, progress, tombstones."""

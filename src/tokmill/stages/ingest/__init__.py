"""Sources become shards of documents."""

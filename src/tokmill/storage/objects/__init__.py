"""Object stores: s3:// gs:// az:// memory://, one seam for reads and for commits.

    url      s3://bucket/key, taken apart; whatever smells of a secret is refused
    store    head · ranges under If-Match · create (If-None-Match) · replace (If-Match) · parts · list · delete
    cloud    the same on S3, Google Cloud Storage and Azure        memory   … and in this process
    file     an object as an input: found by a pattern once, read by its name and its etag ever after
    claim    one writer at a time below a URL, by compare and swap
    probe    does a server keep these promises?

A listing is asked for patterns and for what may be swept, never for what is published.
"""

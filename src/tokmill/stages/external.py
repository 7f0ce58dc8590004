"""Tables in order of a number, however many rows there are: sorted in runs on the disk, and merged.

    tables ─ a run is sorted in memory ─> file without a name:  run 0 ▏run 1 ▏ …    each in ascending batches
    merge    a batch or two of every run is in memory; what lies below the end of the first of them to end is
             in order

The numbers of two rows are never equal. So the order is one, whatever the runs, the batches and the memory.
The file has no name: it is gone with the process, however that ends.

Runs: columns of numbers in order of a key, of which a range is read alone.

    run of n rows    key 8 x n │ column │ column …       raw, little-endian, each column from a multiple of 8
                                                         bytes

    shard 0 ─ run ─┐
    shard 1 ─ run ─┼─ keys from .. to ─> one partition, whatever the number of partitions
    shard 2 ─ run ─┘

A run does not know how many partitions there will be: that is decided when its rows are counted, so that a
partition is as large as a task can hold. A range is found by bisection and read with pread: 0.1 ms for a run,
where a range of a Parquet file takes 3 ms and never less than a row group. Runs are scaffolding: nothing that
lasts is one.

A table that is longer than a task can hold: written part by part, read like any other.

open_table(task, path, name, schema)  ->  append(table) … append(table)  ->  row groups, statistics of `by`
leave the block                       ->  entry, with the digest of the whole as if it had been one table

What is read by shard is in order of `by`, and `load_range` finds it by the statistics.

Rows that a task puts aside in an order that is not the one in which it needs them.

    rows, drawer of each ─ put ─> one file per drawer, appended to        drawer ─ load ─> its rows

The files are temporary: they go with the block,
and a task that was killed leaves them to the sweep of its step.
"""

from __future__ import annotations

_SHARED_DOCUMENTS, _MOST_SHARED = 32_768, 16

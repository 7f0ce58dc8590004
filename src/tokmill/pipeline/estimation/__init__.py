"""What a run will come to, from a run in miniature: documents, tokens, time, memory, disk.

miniature   the steps of a recipe, over a share of its documents
measuring   those steps done: CPU and bytes of each
drawn       what was drawn of each source, and all that there is of it
documents   to all there are: what is kept, dropped and encoded of each source
costs       likewise: CPU, disk, and tasks side by side
figures     what is told, and its file beside the run
estimate    all of it in turn
"""

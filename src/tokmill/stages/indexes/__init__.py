"""What a corpus says, in a few per cent of its bytes: to find in another one what was there already."""

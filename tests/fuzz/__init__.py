"""Readers of what others have written, fed with damaged input by a mutator."""

"""Readers of what others have written, fed with damaged input: by atheris, and by a mutator."""

"""Prints the path of the library that programs can preload.

With it in LD_PRELOAD, a program reports its allocations without probes: see tracelloc help preload.

To try it:
  tracelloc library-path
"""

from argparse import ArgumentParser, Namespace

from tracelloc.text import print_lines


def add_arguments(_parser: ArgumentParser) -> None:
    pass


def run(_given: Namespace) -> None:
    from tracelloc.record.sources.preloaded.sharedarea import preloaded_library

    print_lines([str(preloaded_library())])

"""Runs the tests on kernels of several distributions' releases, in virtual machines."""

# cython: language_level=3
"""Calls a function far down the stack, so that what runs after it does not meet its remains.

A pointer that a test has left in its part of the stack would make a leaked block look reachable as
soon as another function's frame lies there.
"""

cdef extern from *:
    """
    static __attribute__((noinline)) PyObject *call_far_down(PyObject *function)
    {
        volatile char gap[1 << 13];
        PyObject *result;

        gap[0] = 0;
        result = PyObject_CallNoArgs(function);
        gap[1] = 0;
        return result;
    }
    """
    object call_far_down(object function)


def call_apart(function):
    """Calls it without arguments, 8 KiB further down the stack."""
    return call_far_down(function)

# cython: language_level=3
"""Calls tests far down the stack, and tells the preloaded library when, and which line runs.

A pointer that a test has left in its part of the stack would make a leaked block look reachable as
soon as another function's frame lies there.

CPython calls the function that is set by ``_PyInterpreterState_SetEvalFrameFunc`` (PEP 523) to run
a frame. That function waits for the frame of the test, and is away while the test runs.
"""

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #include <dlfcn.h>
    #include <linux/types.h>
    #include <stdint.h>
    #include "event.h"

    typedef PyObject *(*evaluator)(void *thread, uint64_t *frame, int thrown);

    /* Exported by CPython 3.11 and later, but not in its limited interface: found by name. */
    static evaluator (*get)(PyInterpreterState *), evaluate;
    static void (*set)(PyInterpreterState *, evaluator);

    /* In 8 bytes: the instruction in a frame, and the code object, up to 3.11 and later. */
    #define FRAME_REACHED 7
    #define FRAME_OLD_CODE 4
    #define FRAME_CODE 0

    static uint64_t place[4]; /* see tracelloc_preload_place */
    static uint64_t *volatile *shared;
    static int awaits; /* a test is called, and its code known */

    static void set_evaluator(evaluator function)
    {
        set(PyInterpreterState_Get(), function);
    }

    static __attribute__((noinline)) PyObject *tracelloc_enter_test(void *thread, uint64_t *frame,
                                                                   int thrown)
    {
        PyObject *result;

        if ((frame[FRAME_CODE] & ~7ULL) != place[1] && frame[FRAME_OLD_CODE] != place[1])
            return evaluate(thread, frame, thrown);
        set_evaluator(evaluate);
        place[0] = (uint64_t)(frame + FRAME_REACHED);
        place[3] = (uint64_t)__builtin_frame_address(0);
        *shared = place;
        result = evaluate(thread, frame, thrown);
        *shared = NULL;
        if (awaits) /* not if a thread outlives the test */
            set_evaluator(tracelloc_enter_test);
        return result;
    }

    /* Awaits a frame of the code, if nobody else evaluates frames. */
    static void await_frame(PyObject *code)
    {
        /* As in probes/python.bpf.c: identify(). */
        static const int words[] = {3, 4, 8, 9, 11, 17, 16};
        uint64_t identity = 0;

        shared = dlsym(RTLD_DEFAULT, "tracelloc_preload_place");
        get = dlsym(RTLD_DEFAULT, "_PyInterpreterState_GetEvalFrameFunc");
        set = dlsym(RTLD_DEFAULT, "_PyInterpreterState_SetEvalFrameFunc");
        evaluate = dlsym(RTLD_DEFAULT, "_PyEval_EvalFrameDefault");
        if (code == Py_None || !shared || !get || !set || !evaluate ||
            get(PyInterpreterState_Get()) != evaluate)
            return;
        for (int n = 0; n < 7; n++) {
            uint64_t word = ((uint64_t *)code)[words[n]];

            identity = n ? (identity ^ word) * 0x9e3779b97f4a7c15ULL : word;
            identity = n ? identity ^ (identity >> 29) : identity;
        }
        place[1] = (uint64_t)code;
        place[2] = identity;
        awaits = 1;
        set_evaluator(tracelloc_enter_test);
    }

    static __attribute__((noinline)) PyObject *call_far_down(PyObject *function, PyObject *code)
    {
        volatile char gap[1 << 13];
        PyObject *result;

        await_frame(code);
        gap[0] = 0;
        result = PyObject_CallNoArgs(function);
        gap[1] = 0;
        if (awaits)
            set_evaluator(evaluate);
        awaits = 0;
        return result;
    }

    static void mark_part(uint64_t mark, uint64_t value)
    {
        void (*tell)(uint64_t, uint64_t) = dlsym(RTLD_DEFAULT, "tracelloc_preload_part");

        if (tell)
            tell(mark, value);
    }
    """
    object call_far_down(object function, object code)
    void mark_part(uint64_t mark, uint64_t value)
    enum:
        PART_END
        PART_PLAIN
        EVENT_SIZE_BITS


def call_apart(function, code):
    """Calls it without arguments, 8 KiB further down the stack.

    While a function with this code object (or None) runs, its line belongs to call stacks.
    """
    return call_far_down(function, code)


def begin_part(kind, number):
    """Begins a test. ``kind``: counted from PART_PLAIN of enum part_mark; ``number``: the test's."""
    mark_part(PART_PLAIN + kind, number)


def end_part(limit_bytes):
    """Ends a test: no allocations are reported from here on. ``limit_bytes``: of its peak, or None.
    """
    cdef uint64_t most = 1 << 46  # More than a process can have: such sizes are no block's

    mark_part(PART_END, 0 if limit_bytes is None else min(limit_bytes + 1, most))

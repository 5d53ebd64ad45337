// Stands in for PyTorch's libc10_cuda.so, without a GPU: the same USDT probes, with semaphores and
// with arguments in the same kinds of places, `malloc(pointer, device, size, stream)` and
// `free(pointer)`. Memory is only what the caller says.
#include "usdt.h"

USDT_COUNTER(pytorch, malloc);
USDT_COUNTER(pytorch, free);

#if defined(__x86_64__)
// As in the wheel of torch 2.14.1: -8@%rbp -1@%al -8@%r12 -8@56(%rsp), and rbp is no frame pointer.
void report_malloc(void *pointer, signed char device, long size, void *stream);
void report_free(void *pointer);

__asm__(".text\n.hidden report_malloc\n.type report_malloc, @function\nreport_malloc:\n"
        ".cfi_startproc\n"
        "push %rbp\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset %rbp, 0\n"
        "push %r12\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset %r12, 0\n"
        "sub $72, %rsp\n.cfi_adjust_cfa_offset 72\n"
        "mov %rdi, %rbp\nmov $0x5a5a5a5a, %eax\nmov %sil, %al\nmov %rdx, %r12\nmov %rcx, 56(%rsp)\n"
        USDT_NOTE(pytorch, malloc, "-8@%rbp -1@%al -8@%r12 -8@56(%rsp)")
        "add $72, %rsp\n.cfi_adjust_cfa_offset -72\n"
        "pop %r12\n.cfi_adjust_cfa_offset -8\n.cfi_restore %r12\n"
        "pop %rbp\n.cfi_adjust_cfa_offset -8\n.cfi_restore %rbp\n"
        "ret\n.cfi_endproc\n.size report_malloc, .-report_malloc\n"
        ".hidden report_free\n.type report_free, @function\nreport_free:\n.cfi_startproc\n"
        "mov %rdi, %rax\n" USDT_NOTE(pytorch, free, "-8@%rax")
        "ret\n.cfi_endproc\n.size report_free, .-report_free\n");
#else
static void report_malloc(void *pointer, signed char device, long size, void *stream)
{
    (void)stream;
    USDT_3(pytorch, malloc, pointer, (long)device, size);
}

static void report_free(void *pointer)
{
    USDT_1(pytorch, free, pointer);
}
#endif

void standin_malloc(void *pointer, signed char device, long size, void *stream)
{
    if (pytorch_malloc_semaphore)
        report_malloc(pointer, device, size, stream);
}

void standin_free(void *pointer)
{
    if (pytorch_free_semaphore)
        report_free(pointer);
}

int standin_counters(void)
{
    return pytorch_malloc_semaphore << 16 | pytorch_free_semaphore;
}

// Calls of CUDA's runtime: the second way of the documentation.
int cudaMalloc(void **pointer, unsigned long size)
{
    static unsigned long next = 0x7e0000000000;

    if (size > 1UL << 40)
        return 2; // cudaErrorMemoryAllocation
    *pointer = (void *)next;
    next += size;
    return 0;
}

int cudaFree(void *pointer)
{
    return pointer == (void *)1;
}

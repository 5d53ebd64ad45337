// USDT probes in inline assembly: a nop, and a note that says where it is, what it is called,
// where its arguments are, and which counter says that somebody listens.
#ifndef USDT_H
#define USDT_H

#ifndef USDT_NOP
#define USDT_NOP "nop\n"
#endif
#ifndef USDT_CONSTRAINT
#define USDT_CONSTRAINT "r"
#endif

#define USDT_COUNTER(provider, name) \
    volatile unsigned short provider##_##name##_semaphore __attribute__((section(".probes"), used))

#define USDT_NOTE(provider, name, arguments) \
    "990: " USDT_NOP \
    ".pushsection .note.stapsdt,\"\",\"note\"\n" \
    ".balign 4\n" \
    ".4byte 992f-991f, 994f-993f, 3\n" \
    "991: .asciz \"stapsdt\"\n" \
    "992: .balign 4\n" \
    "993: .8byte 990b, _.stapsdt.base, " #provider "_" #name "_semaphore\n" \
    ".asciz \"" #provider "\"\n.asciz \"" #name "\"\n.asciz \"" arguments "\"\n" \
    "994: .balign 4\n" \
    ".popsection\n" \
    ".ifndef _.stapsdt.base\n" \
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
    ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n" \
    "_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n" \
    ".popsection\n.endif\n"

#define USDT_1(provider, name, a) \
    do { \
        unsigned long usdt_first = (unsigned long)(a); \
        __asm__ volatile(USDT_NOTE(provider, name, "8@%[first]") \
                         : : [first] USDT_CONSTRAINT(usdt_first) : "memory"); \
    } while (0)

#define USDT_3(provider, name, a, b, c) \
    do { \
        unsigned long usdt_first = (unsigned long)(a), usdt_second = (unsigned long)(b); \
        unsigned long usdt_third = (unsigned long)(c); \
        __asm__ volatile(USDT_NOTE(provider, name, "8@%[first] 8@%[second] -8@%[third]") \
                         : : [first] USDT_CONSTRAINT(usdt_first), \
                             [second] USDT_CONSTRAINT(usdt_second), \
                             [third] USDT_CONSTRAINT(usdt_third) : "memory"); \
    } while (0)

#endif

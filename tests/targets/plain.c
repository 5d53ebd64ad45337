// Does nothing, and calls no allocator.
#include "command.h"

int main(void)
{
    wait_for_go();
    return 0;
}

// A plugin for QEMU: writes how many instructions the emulated program has executed, at its end.
//
//   -plugin file=THIS,out=FILE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// Of QEMU's qemu-plugin.h, which Debian does not have.
typedef uint64_t plugin_id;
struct qemu_plugin_tb;
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int, void *, uint64_t);
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
int qemu_plugin_version = 1;

static uint64_t count;
static FILE *out;

static void translate(plugin_id id, struct qemu_plugin_tb *block)
{
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &count, qemu_plugin_tb_n_insns(block));
}

static void end(plugin_id id, void *nothing)
{
    (void)id, (void)nothing;
    fprintf(out, "%lu", count);
    fclose(out);
}

int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    (void)info;
    out = argc ? fopen(argv[0] + sizeof("out=") - 1, "w") : NULL;
    if (!out)
        return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
    qemu_plugin_register_atexit_cb(id, end, NULL);
    return 0;
}

/* SPDX-License-Identifier: (MIT OR GPL-2.0) */
/*
 * Finds the next definitions in the symbol tables of the loaded objects that follow this library in
 * the loader's list. (dlsym(3) is not used: it may allocate, and may be missing.)
 * Format: System V gABI, chapter 5; GNU hash tables as in binutils' bfd/elflink.c.
 */
#ifndef TRACELLOC_PRELOADED_SEARCH_H
#define TRACELLOC_PRELOADED_SEARCH_H

#include "next.h"
#include <elf.h>
#include <link.h>

extern int dl_iterate_phdr(int (*)(struct dl_phdr_info *, size_t, void *), void *)
	__attribute__((weak));

struct finding {
	const char *const *names;
	u32 n;
	void **found;    /* by name */
	u8 *with_malloc; /* by name: whether the same object has malloc, too; or NULL */
	int is_behind; /* this library was passed in the loader's list */
	int is_preceded; /* an object before this library has malloc */
};

struct symbols {
	const Elf64_Sym *table;
	const char *strings;
	const u32 *gnu_hash;
	const u32 *hash;
};

/* Some loaders relocate the addresses in the dynamic section, others don't. */
static const void *pointer(const struct dl_phdr_info *object, u64 value)
{
	return (const void *)(value < object->dlpi_addr ? value + object->dlpi_addr : value);
}

static struct symbols symbols_of(const struct dl_phdr_info *object)
{
	struct symbols found = {0};
	const Elf64_Dyn *entry = NULL;

	for (u32 n = 0; n < object->dlpi_phnum; n++)
		if (object->dlpi_phdr[n].p_type == PT_DYNAMIC)
			entry = (const Elf64_Dyn *)(object->dlpi_addr + object->dlpi_phdr[n].p_vaddr);
	for (; entry && entry->d_tag != DT_NULL; entry++) {
		const void *at = pointer(object, entry->d_un.d_ptr);

		if (entry->d_tag == DT_SYMTAB)
			found.table = at;
		else if (entry->d_tag == DT_STRTAB)
			found.strings = at;
		else if (entry->d_tag == DT_GNU_HASH)
			found.gnu_hash = at;
		else if (entry->d_tag == DT_HASH)
			found.hash = at;
	}
	return found;
}

static const Elf64_Sym *find_by_gnu_hash(const struct symbols *symbols, const char *name)
{
	const u32 *table = symbols->gnu_hash;
	u32 buckets = table[0], first = table[1], words = table[2], hash = 5381;
	const u32 *bucket = table + 4 + 2 * words;
	const u32 *chain = bucket + buckets;
	u64 bloom;
	u32 at;

	for (const char *c = name; *c; c++)
		hash = hash * 33 + (u8)*c;
	/* The Bloom filter: one word rules out most objects. */
	bloom = words ? ((const u64 *)(table + 4))[hash / 64 % words] : 0;
	if (!(bloom >> hash % 64 & bloom >> (hash >> table[3]) % 64 & 1))
		return NULL;
	at = buckets ? bucket[hash % buckets] : 0;
	if (at < first)
		return NULL;
	for (;; at++) {
		if ((chain[at - first] | 1) == (hash | 1) &&
		    is_same(symbols->strings + symbols->table[at].st_name, name))
			return &symbols->table[at];
		if (chain[at - first] & 1)
			return NULL;
	}
}

static const Elf64_Sym *find_by_hash(const struct symbols *symbols, const char *name)
{
	u32 buckets = symbols->hash[0], hash = 0;
	const u32 *bucket = symbols->hash + 2;
	const u32 *chain = bucket + buckets;

	for (const char *c = name; *c; c++) {
		hash = (hash << 4) + (u8)*c;
		hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
	}
	for (u32 at = buckets ? bucket[hash % buckets] : 0; at; at = chain[at])
		if (is_same(symbols->strings + symbols->table[at].st_name, name))
			return &symbols->table[at];
	return NULL;
}

static const Elf64_Sym *find_symbol(const struct symbols *symbols, const char *name)
{
	if (!symbols->table || !symbols->strings)
		return NULL;
	if (symbols->gnu_hash)
		return find_by_gnu_hash(symbols, name);
	return symbols->hash ? find_by_hash(symbols, name) : NULL;
}

static void *find_in(const struct dl_phdr_info *object, const struct symbols *symbols,
		     const char *name)
{
	const Elf64_Sym *symbol = find_symbol(symbols, name);
	void *address;

	if (!symbol || symbol->st_shndx == SHN_UNDEF)
		return NULL;
	address = (void *)(object->dlpi_addr + symbol->st_value);
	if (ELF64_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC)
		return ((void *(*)(void))address)();
	return ELF64_ST_TYPE(symbol->st_info) == STT_FUNC ? address : NULL;
}

static int has_address(const struct dl_phdr_info *object, const void *address)
{
	for (u32 n = 0; n < object->dlpi_phnum; n++) {
		const Elf64_Phdr *part = &object->dlpi_phdr[n];

		if (part->p_type == PT_LOAD &&
		    (u64)address - object->dlpi_addr - part->p_vaddr < part->p_memsz)
			return 1;
	}
	return 0;
}

static int look_into(struct dl_phdr_info *object, size_t size, void *argument)
{
	const struct symbols symbols = symbols_of(object);
	struct finding *finding = argument;

	(void)size;
	if (!finding->is_behind) {
		finding->is_behind = has_address(object, &next);
		if (!finding->is_behind && find_in(object, &symbols, "malloc"))
			finding->is_preceded = 1;
		return 0;
	}
	for (u32 n = 0; n < finding->n; n++) {
		if (finding->found[n])
			continue;
		finding->found[n] = find_in(object, &symbols, finding->names[n]);
		if (finding->found[n] && finding->with_malloc)
			finding->with_malloc[n] = find_in(object, &symbols, "malloc") != NULL;
	}
	return 0;
}

/* Replacements for functions that no library has. */
static void *lacking_reallocarray(void *block, size_t n, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes))
		bytes = -1UL >> 1; /* so that it fails */
	return next.realloc(block, bytes);
}

static void *lacking_pvalloc(size_t size)
{
	return next.memalign(LARGEST_PAGE, (size + LARGEST_PAGE - 1) & -(u64)LARGEST_PAGE);
}

static void *lacking_valloc(size_t size)
{
	return next.memalign(LARGEST_PAGE, size);
}

/* Returns the next definition of another function; NULL if there is none. */
static void *find_one(const char *name)
{
	void *found = NULL;
	struct finding finding = {.names = &name, .n = 1, .found = &found};

	if (dl_iterate_phdr)
		dl_iterate_phdr(look_into, &finding);
	return found;
}

/* Whether the program calls another malloc before this library's: its own, or one preloaded. */
static int is_preceded;

/* Finds all next definitions. Returns 0 if an essential one is missing. */
static int find_next(void)
{
	void *found[FUNCTIONS] = {0};
	struct finding finding = {.names = names, .n = FUNCTIONS, .found = found};

	if (!dl_iterate_phdr)
		return 0;
	dl_iterate_phdr(look_into, &finding);
	is_preceded = finding.is_preceded;
	if (!found[4])
		found[4] = lacking_reallocarray;
	if (!found[8])
		found[8] = lacking_valloc;
	if (!found[9])
		found[9] = lacking_pvalloc;
	if (!found[11])
		found[11] = found[10];
	for (u32 n = 0; n < FUNCTIONS; n++)
		if (!found[n])
			return 0;
	for (u32 n = 0; n < FUNCTIONS; n++)
		((void **)&next)[n] = found[n];
	return 1;
}

#endif

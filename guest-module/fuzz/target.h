/* SPDX-License-Identifier: GPL-2.0 */
/* What target.c and driver.c share. */
#ifndef HEDDLE_TARGET_H
#define HEDDLE_TARGET_H

#include <stddef.h>
#include <stdint.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif
#ifndef ASAN_POISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(address, len) ((void)(address), (void)(len))
#define ASAN_UNPOISON_MEMORY_REGION(address, len) ((void)(address), (void)(len))
#endif

/* What the target has read so far. */
struct counts {
	unsigned long inputs;
	unsigned long packets;	/* handed to packet_read() */
	unsigned long accepted;
	unsigned long ports;
	unsigned long ports_accepted;
};

extern struct counts counts;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Poisoned bytes on either side. */
#define FENCE_LEN		64
#define FENCE_WORDS(len_max)	(((len_max) + 2 * FENCE_LEN + 7) / 8)

/* Memory of FENCE_WORDS(len_max) words, and what of it is poisoned. */
struct fence {
	uint64_t *memory;
	size_t len_max;
	uint8_t *front;
};

/*
 * @len bytes that end where poisoned memory begins. The sanitizer knows the
 * first valid byte of each 8 only from their end, so up to 7 bytes in front of
 * them may be valid.
 */
static inline uint8_t *fence_place(struct fence *fence, size_t len)
{
	uint8_t *end = (uint8_t *)fence->memory + FENCE_LEN + (fence->len_max + 7) / 8 * 8;
	uint8_t *start = end - len;

	if (fence->front)
		ASAN_UNPOISON_MEMORY_REGION(fence->front, FENCE_LEN);
	else
		ASAN_POISON_MEMORY_REGION(end, FENCE_LEN);
	fence->front = (uint8_t *)((uintptr_t)start & ~(uintptr_t)7) - FENCE_LEN;
	ASAN_POISON_MEMORY_REGION(fence->front, FENCE_LEN);
	return start;
}

#endif

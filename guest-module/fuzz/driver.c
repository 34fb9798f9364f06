// SPDX-License-Identifier: GPL-2.0
/*
 * Runs the target without libFuzzer: each file of a corpus, and random changes
 * of them.
 *
 * usage: driver COUNT SEED FILE...	until COUNT packets were read
 *        driver end|start			a control: reads beyond a message, on purpose
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "target.h"

#define LEN_MAX		9000
#define SEEDS_MAX	256

static uint64_t state;

/* A number below @end, which is less than 2^32. */
static uint32_t random_below(uint32_t end)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((state >> 32) * end >> 32);
}

/* Changes some of the bytes, or their number. */
static size_t change(uint8_t *data, size_t size)
{
	uint32_t at;

	switch (random_below(16)) {
	case 0:
		return random_below((uint32_t)size + 1);
	case 1:
		at = random_below(64);
		if (size + at <= LEN_MAX) {
			memset(data + size, (int)random_below(256), at);
			size += at;
		}
		return size;
	default:
		if (!size)
			return 0;
		/* Most headers stand at the front. */
		at = random_below(random_below(4) && size > 96 ? 96 : (uint32_t)size);
		if (random_below(2))
			data[at] ^= 1u << random_below(8);
		else
			data[at] = (uint8_t)random_below(256);
		return size;
	}
}

/* A copy, so that the sanitizer knows where it ends. */
static uint8_t *copy_of(const uint8_t *data, size_t size)
{
	static uint64_t memory[FENCE_WORDS(LEN_MAX)];
	static struct fence fence = { .memory = memory, .len_max = LEN_MAX };

	return memcpy(fence_place(&fence, size), data, size);
}

static void run(const uint8_t *data, size_t size)
{
	LLVMFuzzerTestOneInput(copy_of(data, size), size);
}

/* Returns only if the sanitizer does not notice. */
static int overrun(int at_end)
{
	static const uint8_t data[160];

	/* An odd length, behind a longer one. */
	copy_of(data, 160);
	if (at_end)
		return *(volatile uint8_t *)(copy_of(data, 101) + 101);
	return *(volatile uint8_t *)(copy_of(data, 104) - 1);
}

int main(int count, char **arguments)
{
	static uint8_t seeds[SEEDS_MAX][LEN_MAX], data[LEN_MAX];
	static size_t sizes[SEEDS_MAX];
	unsigned long packets;
	uint32_t seed_count = 0;
	double seconds;

	if (count == 2)
		return overrun(!strcmp(arguments[1], "end"));
	if (count < 4) {
		fprintf(stderr, "usage: %s COUNT SEED FILE...\n", arguments[0]);
		return 2;
	}
	packets = strtoul(arguments[1], NULL, 10);
	state = strtoull(arguments[2], NULL, 10);
	for (int file = 3; file < count && seed_count < SEEDS_MAX; file++) {
		FILE *from = fopen(arguments[file], "rb");

		if (!from) {
			perror(arguments[file]);
			return 2;
		}
		sizes[seed_count] = fread(seeds[seed_count], 1, LEN_MAX, from);
		fclose(from);
		run(seeds[seed_count], sizes[seed_count]);
		seed_count++;
	}
	while (counts.packets < packets) {
		uint32_t seed = random_below(seed_count), changes = 1 + random_below(6);
		size_t size = sizes[seed];

		memcpy(data, seeds[seed], size);
		while (changes--)
			size = change(data, size);
		run(data, size);
	}
	seconds = (double)clock() / CLOCKS_PER_SEC;
	printf("%u seeds, %lu inputs: %lu packets, %lu of them accepted; %lu states of ports, %lu of them accepted; %.1f s\n",
	       seed_count, counts.inputs, counts.packets, counts.accepted, counts.ports,
	       counts.ports_accepted, seconds);
	return 0;
}

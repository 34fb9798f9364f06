// SPDX-License-Identifier: GPL-2.0
/*
 * Runs the target without libFuzzer: each file of a corpus, and random changes
 * of them.
 *
 * usage: driver COUNT SEED FILE...
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEN_MAX 9000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t state;

static uint32_t random_below(uint32_t end)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(state >> 33) % end;
}

static size_t change(uint8_t *data, size_t size)
{
	uint32_t at;

	switch (random_below(5)) {
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
		at = random_below(random_below(2) && size > 96 ? 96 : (uint32_t)size);
		if (random_below(2))
			data[at] ^= 1u << random_below(8);
		else
			data[at] = (uint8_t)random_below(256);
		return size;
	}
}

static void run(const uint8_t *data, size_t size)
{
	/* A copy of its own, so that the sanitizer knows where it ends. */
	uint8_t *copy = malloc(size ? size : 1);

	if (!copy)
		abort();
	memcpy(copy, data, size);
	LLVMFuzzerTestOneInput(copy, size);
	free(copy);
}

int main(int count, char **arguments)
{
	static uint8_t seeds[64][LEN_MAX], data[LEN_MAX];
	static size_t sizes[64];
	unsigned long i, rounds;
	int seed_count = 0;

	if (count < 4) {
		fprintf(stderr, "usage: %s COUNT SEED FILE...\n", arguments[0]);
		return 2;
	}
	rounds = strtoul(arguments[1], NULL, 10);
	state = strtoull(arguments[2], NULL, 10);
	for (int file = 3; file < count && seed_count < 64; file++) {
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
	for (i = 0; i < rounds; i++) {
		int seed = (int)random_below((uint32_t)seed_count);
		size_t size = sizes[seed];
		uint32_t changes = 1 + random_below(6);

		memcpy(data, seeds[seed], LEN_MAX);
		while (changes--)
			size = change(data, size);
		run(data, size);
	}
	printf("%d seeds and %lu changed ones\n", seed_count, rounds);
	return 0;
}

/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Integer types and big-endian access for the files that also build in user
 * space: wire.c and packet.c.
 */
#ifndef HEDDLE_PORTABLE_H
#define HEDDLE_PORTABLE_H

#ifdef __KERNEL__
#include <linux/types.h>
#include <linux/string.h>
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
#endif

static inline u16 be16_at(const u8 *p)
{
	return (u16)(p[0] << 8 | p[1]);
}

static inline u32 be24_at(const u8 *p)
{
	return (u32)p[0] << 16 | (u32)p[1] << 8 | p[2];
}

static inline u32 be32_at(const u8 *p)
{
	return (u32)p[0] << 24 | be24_at(p + 1);
}

static inline u64 be64_at(const u8 *p)
{
	return (u64)be32_at(p) << 32 | be32_at(p + 4);
}

static inline void put_be16(u8 *p, u16 value)
{
	p[0] = value >> 8;
	p[1] = value & 0xff;
}

static inline void put_be24(u8 *p, u32 value)
{
	p[0] = value >> 16 & 0xff;
	put_be16(p + 1, value & 0xffff);
}

static inline void put_be32(u8 *p, u32 value)
{
	p[0] = value >> 24;
	put_be24(p + 1, value & 0xffffff);
}

static inline void put_be64(u8 *p, u64 value)
{
	put_be32(p, value >> 32);
	put_be32(p + 4, value & 0xffffffff);
}

#endif

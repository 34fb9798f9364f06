// SPDX-License-Identifier: GPL-2.0
/*
 * Reads any bytes as a message of the wire, and what it reads again after
 * writing it. For libFuzzer, and for driver.c.
 */
#include <assert.h>
#include <stdlib.h>

#include "../packet.h"
#include "../wire.h"
#include "target.h"

struct counts counts;

/*
 * A copy whose first and last byte are next to poisoned memory, as those of
 * malloc() are, but without its cost: one place for each @which.
 */
static u8 *fenced(unsigned int which, size_t len)
{
	static u64 memory[2][FENCE_WORDS(PACKET_LEN_MAX)];
	static struct fence fences[2];

	fences[which].memory = memory[which];
	fences[which].len_max = PACKET_LEN_MAX;
	return fence_place(&fences[which], len);
}

/* What was read is within the packet. */
static void check_bounds(const struct packet *packet, const u8 *raw, size_t len)
{
	assert(packet->flags & PKT_KNOWN);
	assert(packet->payload >= raw + PACKET_LRH_LEN + PACKET_BTH_LEN);
	assert(packet->payload + packet->payload_len + PACKET_ICRC_LEN <= raw + len);
	assert(!packet->payload_len || (packet->flags & PKT_PAYLOAD));
	assert(packet->payload == raw + packet_headers_len(packet));
	assert(packet->global == (packet->grh != NULL));
	assert(packet->dest_qpn <= PACKET_QPN_MASK && packet->psn <= PACKET_PSN_MASK);
	assert(packet_headers_len(packet) <= PACKET_HEADERS_MAX);
}

/* A packet that was read, written and read again is the same. */
static void check_round_trip(const struct packet *first)
{
	struct packet again, same = *first;
	u32 len = packet_len(first);
	u8 *raw = fenced(1, len), *payload;

	payload = packet_write(first, raw);
	memcpy(payload, first->payload, first->payload_len);
	assert(packet_read(&again, raw, len));
	assert(!memcmp(again.payload, first->payload, first->payload_len));
	assert(!again.global == !first->global);
	same.payload = again.payload;
	same.grh = again.grh;
	assert(!memcmp(&again, &same, sizeof(same)));
}

/* What the module calculates with fields of a packet. */
static void check_arithmetic(const struct packet *packet)
{
	u32 later = psn_add(packet->psn, packet->dma_len & 0x7fffff);

	assert(later <= PACKET_PSN_MASK);
	assert(psn_diff(later, packet->psn) == (int)(packet->dma_len & 0x7fffff));
	assert(pkey_matches(packet->pkey, 0xffff) == ((packet->pkey & 0x7fff) == 0x7fff));
	assert(pkey_matches(packet->pkey, packet->pkey) ==
	       ((packet->pkey & 0x8000) && (packet->pkey & 0x7fff)));
	assert(!pkey_matches(packet->pkey & 0x7fff, packet->pkey & 0x7fff));
	assert(packet_is_multicast(packet) ==
	       (packet->dlid >= 0xc000 && packet->dlid != 0xffff));
}

static void try_packet(const u8 *raw, size_t len)
{
	struct packet packet;

	counts.packets++;
	if (packet_read(&packet, raw, len)) {
		counts.accepted++;
		check_bounds(&packet, raw, len);
		check_arithmetic(&packet);
		check_round_trip(&packet);
	}
}

static void read_packet(const u8 *body, size_t len)
{
	struct packet packet;
	u8 *raw;

	if (len > PACKET_LEN_MAX) {
		assert(!packet_read(&packet, body, len));
		return;
	}
	raw = fenced(0, len);
	memcpy(raw, body, len);
	try_packet(raw, len);
	/* Lengths that agree are rare among random bytes. */
	if (len >= 24 && len % 4 == 0) {
		put_be16(raw + 4, len / 4);
		raw[0] &= 0xf0;
		if ((raw[1] & 3) == 3 && len >= 64) {
			raw[8] = 0x60 | (raw[8] & 0xf);
			put_be16(raw + 12, len - 48);
			raw[14] = 0x1b;
		}
		try_packet(raw, len);
	}
}

static void check_port(const struct wire_port *port)
{
	assert(port->guid_count >= 1 && port->guid_count <= WIRE_GUIDS_MAX);
	assert(port->pkey_count <= WIRE_PKEYS_MAX);
	assert(port->lid < PACKET_LID_MULTICAST && port->lmc <= 7);
	assert(port->mtu >= 1 && port->mtu <= 5);
	assert((u64)port->first_qp + port->qp_count <= 1u << 24);
}

/* A hello of the same content, as the module writes it, is the same. */
static void check_hello(const u8 *body, size_t len)
{
	u8 hello[WIRE_HEADER_LEN + WIRE_HELLO_LEN];
	enum wire_kind kind;
	const u8 *again;
	size_t again_len;

	if (len < WIRE_HELLO_LEN)
		return;
	wire_header_write(hello, WIRE_HELLO, WIRE_HELLO_LEN);
	wire_hello_write(hello + WIRE_HEADER_LEN, be32_at(body), be32_at(body + 4),
			 (const char *)body + WIRE_HELLO_NODE_DESC);
	assert(wire_read(hello, sizeof(hello), &kind, &again, &again_len));
	assert(kind == WIRE_HELLO && again_len == WIRE_HELLO_LEN);
	assert(!memcmp(again, body, WIRE_HELLO_NODE_DESC + WIRE_NODE_DESC_LEN));
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	struct wire_port port;
	enum wire_kind kind;
	const u8 *body;
	size_t len;

	counts.inputs++;
	if (!wire_read(data, size, &kind, &body, &len))
		return 0;
	assert(body + len <= data + size);
	if (kind == WIRE_PACKET) {
		read_packet(body, len);
	} else if (kind == WIRE_HELLO) {
		check_hello(body, len);
	} else {
		counts.ports++;
		if (wire_port_read(&port, body, len)) {
			counts.ports_accepted++;
			check_port(&port);
		}
	}
	return 0;
}

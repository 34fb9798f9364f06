// SPDX-License-Identifier: GPL-2.0
/*
 * Reads any bytes as a message of the wire, and what it reads again after
 * writing it. For libFuzzer, and for driver.c.
 */
#include <assert.h>
#include <stdlib.h>

#include "../packet.h"
#include "../wire.h"

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
	u8 *raw = malloc(len), *payload;

	assert(raw);
	payload = packet_write(first, raw);
	memcpy(payload, first->payload, first->payload_len);
	assert(packet_read(&again, raw, len));
	assert(!memcmp(again.payload, first->payload, first->payload_len));
	assert(!again.global == !first->global);
	same.payload = again.payload;
	same.grh = again.grh;
	assert(!memcmp(&again, &same, sizeof(same)));
	free(raw);
}

static void check_port(const struct wire_port *port)
{
	assert(port->guid_count >= 1 && port->guid_count <= WIRE_GUIDS_MAX);
	assert(port->pkey_count <= WIRE_PKEYS_MAX);
	assert(port->lid < PACKET_LID_MULTICAST && port->lmc <= 7);
	assert(port->mtu >= 1 && port->mtu <= 5);
	assert((u64)port->first_qp + port->qp_count <= 1u << 24);
}

static void read_packet(const u8 *body, size_t len)
{
	/* A copy of its own, so that a read past its end is seen. */
	u8 *raw = malloc(len ? len : 1);
	struct packet packet;

	assert(raw);
	memcpy(raw, body, len);
	if (packet_read(&packet, raw, len)) {
		check_bounds(&packet, raw, len);
		check_round_trip(&packet);
	}
	/* Lengths that agree are rare among random bytes. */
	if (len >= 24 && len % 4 == 0 && len <= PACKET_LEN_MAX) {
		put_be16(raw + 4, len / 4);
		raw[0] &= 0xf0;
		if ((raw[1] & 3) == 3 && len >= 64) {
			raw[8] = 0x60 | (raw[8] & 0xf);
			put_be16(raw + 12, len - 48);
			raw[14] = 0x1b;
		}
		if (packet_read(&packet, raw, len)) {
			check_bounds(&packet, raw, len);
			check_round_trip(&packet);
		}
	}
	free(raw);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	struct wire_port port;
	enum wire_kind kind;
	const u8 *body;
	size_t len;

	if (!wire_read(data, size, &kind, &body, &len))
		return 0;
	assert(body + len <= data + size);
	if (kind == WIRE_PACKET)
		read_packet(body, len);
	else if (kind == WIRE_PORT && wire_port_read(&port, body, len))
		check_port(&port);
	return 0;
}

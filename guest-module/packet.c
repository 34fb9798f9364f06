// SPDX-License-Identifier: GPL-2.0
/* Reading and writing InfiniBand packets. Builds in user space, too. */
#include "packet.h"

/* Values of the LRH field LNH. */
#define NEXT_BTH	2
#define NEXT_GRH	3
/* IP version and next header of a GRH. */
#define GRH_VERSION	6
#define GRH_NEXT_BTH	0x1b

#define SEND(more)	(PKT_KNOWN | PKT_SEND | PKT_PAYLOAD | (more))
#define WRITE(more)	(PKT_KNOWN | PKT_WRITE | PKT_PAYLOAD | (more))
#define RESPONSE(more)	(PKT_KNOWN | PKT_RESPONSE | (more))
#define ONLY		(PKT_FIRST | PKT_LAST)

static const u32 flags_of[] = {
	[RC_SEND_FIRST]		= SEND(PKT_FIRST),
	[RC_SEND_MIDDLE]	= SEND(0),
	[RC_SEND_LAST]		= SEND(PKT_LAST),
	[RC_SEND_LAST_IMM]	= SEND(PKT_LAST | PKT_IMM),
	[RC_SEND_ONLY]		= SEND(ONLY),
	[RC_SEND_ONLY_IMM]	= SEND(ONLY | PKT_IMM),
	[RC_SEND_LAST_INV]	= SEND(PKT_LAST | PKT_IETH),
	[RC_SEND_ONLY_INV]	= SEND(ONLY | PKT_IETH),
	[RC_WRITE_FIRST]	= WRITE(PKT_FIRST | PKT_RETH),
	[RC_WRITE_MIDDLE]	= WRITE(0),
	[RC_WRITE_LAST]		= WRITE(PKT_LAST),
	[RC_WRITE_LAST_IMM]	= WRITE(PKT_LAST | PKT_IMM),
	[RC_WRITE_ONLY]		= WRITE(ONLY | PKT_RETH),
	[RC_WRITE_ONLY_IMM]	= WRITE(ONLY | PKT_RETH | PKT_IMM),
	[RC_READ_REQUEST]	= PKT_KNOWN | PKT_READ | ONLY | PKT_RETH,
	[RC_READ_FIRST]		= RESPONSE(PKT_READ | PKT_FIRST | PKT_PAYLOAD | PKT_AETH),
	[RC_READ_MIDDLE]	= RESPONSE(PKT_READ | PKT_PAYLOAD),
	[RC_READ_LAST]		= RESPONSE(PKT_READ | PKT_LAST | PKT_PAYLOAD | PKT_AETH),
	[RC_READ_ONLY]		= RESPONSE(PKT_READ | ONLY | PKT_PAYLOAD | PKT_AETH),
	[RC_ACK]		= RESPONSE(ONLY | PKT_AETH),
	[RC_ATOMIC_ACK]		= RESPONSE(PKT_ATOMIC | ONLY | PKT_AETH | PKT_ATOMIC_ACK),
	[RC_CMP_SWAP]		= PKT_KNOWN | PKT_ATOMIC | ONLY | PKT_ATOMIC_ETH,
	[RC_FETCH_ADD]		= PKT_KNOWN | PKT_ATOMIC | ONLY | PKT_ATOMIC_ETH,
	[UD_SEND]		= SEND(PKT_DATAGRAM | ONLY | PKT_DETH),
	[UD_SEND_IMM]		= SEND(PKT_DATAGRAM | ONLY | PKT_DETH | PKT_IMM),
};

u32 packet_flags(u8 opcode)
{
	return opcode < sizeof(flags_of) / sizeof(*flags_of) ? flags_of[opcode] : 0;
}

/* Length of the headers between BTH and payload. */
static u32 extension_len(u32 flags)
{
	return (flags & PKT_RETH ? 16 : 0) + (flags & PKT_ATOMIC_ETH ? 28 : 0) +
	       (flags & PKT_DETH ? 8 : 0) + (flags & PKT_AETH ? 4 : 0) +
	       (flags & PKT_ATOMIC_ACK ? 8 : 0) + (flags & PKT_IMM ? 4 : 0) +
	       (flags & PKT_IETH ? 4 : 0);
}

static const u8 *read_extension(struct packet *packet, const u8 *p)
{
	u32 flags = packet->flags;

	if (flags & PKT_RETH) {
		packet->address = be64_at(p);
		packet->rkey = be32_at(p + 8);
		packet->dma_len = be32_at(p + 12);
		p += 16;
	}
	if (flags & PKT_ATOMIC_ETH) {
		packet->address = be64_at(p);
		packet->rkey = be32_at(p + 8);
		packet->swap_add = be64_at(p + 12);
		packet->compare = be64_at(p + 20);
		p += 28;
	}
	if (flags & PKT_DETH) {
		packet->qkey = be32_at(p);
		packet->src_qpn = be24_at(p + 5);
		p += 8;
	}
	if (flags & PKT_AETH) {
		packet->syndrome = p[0];
		packet->msn = be24_at(p + 1);
		p += 4;
	}
	if (flags & PKT_ATOMIC_ACK) {
		packet->original = be64_at(p);
		p += 8;
	}
	if (flags & PKT_IMM) {
		packet->imm = be32_at(p);
		p += 4;
	}
	if (flags & PKT_IETH) {
		packet->invalidate = be32_at(p);
		p += 4;
	}
	return p;
}

static void read_grh(struct packet *packet, const u8 *p)
{
	packet->global = true;
	packet->grh = p;
	packet->traffic_class = be16_at(p) >> 4 & 0xff;
	packet->flow_label = be24_at(p + 1) & 0xfffff;
	packet->hop_limit = p[7];
	memcpy(packet->sgid, p + 8, sizeof(packet->sgid));
	memcpy(packet->dgid, p + 24, sizeof(packet->dgid));
}

bool packet_read(struct packet *packet, const u8 *raw, size_t len)
{
	const u8 *p = raw;
	u32 rest, ext, pad;
	u8 next;

	/* LRH */
	if (len < PACKET_LRH_LEN + PACKET_BTH_LEN + PACKET_ICRC_LEN ||
	    len > PACKET_LEN_MAX)
		return false;
	rest = (u32)len;
	if ((p[0] & 0xf) || (be16_at(p + 4) & 0x7ffu) * 4 != rest)
		return false;
	memset(packet, 0, sizeof(*packet));
	packet->vl = p[0] >> 4;
	packet->sl = p[1] >> 4;
	next = p[1] & 3;
	packet->dlid = be16_at(p + 2);
	packet->slid = be16_at(p + 6);
	p += PACKET_LRH_LEN;
	rest -= PACKET_LRH_LEN;
	if (next == NEXT_GRH) {
		if (rest < PACKET_GRH_LEN + PACKET_BTH_LEN + PACKET_ICRC_LEN)
			return false;
		if (p[0] >> 4 != GRH_VERSION || p[6] != GRH_NEXT_BTH ||
		    be16_at(p + 4) != rest - PACKET_GRH_LEN)
			return false;
		read_grh(packet, p);
		p += PACKET_GRH_LEN;
		rest -= PACKET_GRH_LEN;
	} else if (next != NEXT_BTH) {
		return false;
	}
	/* BTH */
	packet->opcode = p[0];
	packet->flags = packet_flags(p[0]);
	if (!packet->flags || (p[1] & 0xf))
		return false;
	packet->solicited = p[1] >> 7;
	packet->migrated = p[1] >> 6 & 1;
	pad = p[1] >> 4 & 3;
	packet->pkey = be16_at(p + 2);
	packet->dest_qpn = be24_at(p + 5);
	packet->ack_request = p[8] >> 7;
	packet->psn = be24_at(p + 9);
	p += PACKET_BTH_LEN;
	rest -= PACKET_BTH_LEN + PACKET_ICRC_LEN;
	/* The rest. */
	ext = extension_len(packet->flags);
	if (rest < ext + pad)
		return false;
	packet->payload = read_extension(packet, p);
	packet->payload_len = rest - ext - pad;
	return !packet->payload_len || (packet->flags & PKT_PAYLOAD);
}

u32 packet_headers_len(const struct packet *packet)
{
	return PACKET_LRH_LEN + (packet->global ? PACKET_GRH_LEN : 0) +
	       PACKET_BTH_LEN + extension_len(packet_flags(packet->opcode));
}

static u32 padding_len(const struct packet *packet)
{
	return -packet->payload_len & 3;
}

u32 packet_len(const struct packet *packet)
{
	return packet_headers_len(packet) + packet->payload_len +
	       padding_len(packet) + PACKET_ICRC_LEN;
}

static u8 *write_extension(const struct packet *packet, u32 flags, u8 *p)
{
	if (flags & PKT_RETH) {
		put_be64(p, packet->address);
		put_be32(p + 8, packet->rkey);
		put_be32(p + 12, packet->dma_len);
		p += 16;
	}
	if (flags & PKT_ATOMIC_ETH) {
		put_be64(p, packet->address);
		put_be32(p + 8, packet->rkey);
		put_be64(p + 12, packet->swap_add);
		put_be64(p + 20, packet->compare);
		p += 28;
	}
	if (flags & PKT_DETH) {
		put_be32(p, packet->qkey);
		put_be32(p + 4, packet->src_qpn & PACKET_QPN_MASK);
		p += 8;
	}
	if (flags & PKT_AETH) {
		p[0] = packet->syndrome;
		put_be24(p + 1, packet->msn & PACKET_PSN_MASK);
		p += 4;
	}
	if (flags & PKT_ATOMIC_ACK) {
		put_be64(p, packet->original);
		p += 8;
	}
	if (flags & PKT_IMM) {
		put_be32(p, packet->imm);
		p += 4;
	}
	if (flags & PKT_IETH) {
		put_be32(p, packet->invalidate);
		p += 4;
	}
	return p;
}

u8 *packet_write(const struct packet *packet, u8 *raw)
{
	u32 len = packet_len(packet), pad = padding_len(packet);
	u8 *p = raw, *payload;

	p[0] = packet->vl << 4;
	p[1] = packet->sl << 4 | (packet->global ? NEXT_GRH : NEXT_BTH);
	put_be16(p + 2, packet->dlid);
	put_be16(p + 4, len / 4);
	put_be16(p + 6, packet->slid);
	p += PACKET_LRH_LEN;
	if (packet->global) {
		put_be32(p, (u32)GRH_VERSION << 28 | (u32)packet->traffic_class << 20 |
			    (packet->flow_label & 0xfffff));
		put_be16(p + 4, len - PACKET_LRH_LEN - PACKET_GRH_LEN);
		p[6] = GRH_NEXT_BTH;
		p[7] = packet->hop_limit;
		memcpy(p + 8, packet->sgid, sizeof(packet->sgid));
		memcpy(p + 24, packet->dgid, sizeof(packet->dgid));
		p += PACKET_GRH_LEN;
	}
	p[0] = packet->opcode;
	p[1] = packet->solicited << 7 | packet->migrated << 6 | pad << 4;
	put_be16(p + 2, packet->pkey);
	put_be32(p + 4, packet->dest_qpn & PACKET_QPN_MASK);
	put_be32(p + 8, (u32)packet->ack_request << 31 | (packet->psn & PACKET_PSN_MASK));
	p += PACKET_BTH_LEN;
	payload = write_extension(packet, packet_flags(packet->opcode), p);
	memset(payload + packet->payload_len, 0, pad + PACKET_ICRC_LEN);
	return payload;
}

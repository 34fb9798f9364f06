// SPDX-License-Identifier: GPL-2.0
/*
 * Messages between this module and the emulated fabric. Builds in user space,
 * too.
 */
#include "wire.h"

#define UNICAST_LID_MAX	0xbfff
#define QPN_END		(1u << 24)
#define STATE_MAX	5	/* ActiveDefer */

bool wire_read(const u8 *message, size_t len, enum wire_kind *kind,
	       const u8 **body, size_t *body_len)
{
	size_t stated;

	if (len < WIRE_HEADER_LEN || message[1] != WIRE_VERSION)
		return false;
	stated = be16_at(message + 2);
	/* What follows the body is padding of Ethernet. */
	if (stated > len - WIRE_HEADER_LEN)
		return false;
	switch (message[0]) {
	case WIRE_PACKET:
	case WIRE_PORT:
	case WIRE_HELLO:
		*kind = message[0];
		break;
	default:
		return false;
	}
	*body = message + WIRE_HEADER_LEN;
	*body_len = stated;
	return true;
}

void wire_header_write(u8 *header, enum wire_kind kind, size_t body_len)
{
	header[0] = kind;
	header[1] = WIRE_VERSION;
	put_be16(header + 2, (u16)body_len);
}

static u16 unicast_or_none(u16 lid)
{
	return lid <= UNICAST_LID_MAX ? lid : 0;
}

static bool is_mtu(u8 mtu)
{
	return mtu >= 1 && mtu <= 5;
}

bool wire_port_read(struct wire_port *port, const u8 *body, size_t len)
{
	unsigned int i;

	if (len < WIRE_PORT_LEN)
		return false;
	memset(port, 0, sizeof(*port));
	port->node_guid = be64_at(body + WIRE_PORT_NODE_GUID);
	port->system_guid = be64_at(body + WIRE_PORT_SYSTEM_GUID);
	port->port_guid = be64_at(body + WIRE_PORT_GUID);
	port->gid_prefix = be64_at(body + WIRE_PORT_GID_PREFIX);
	port->capability = be32_at(body + WIRE_PORT_CAPABILITY);
	port->registrations = be32_at(body + WIRE_PORT_REGISTRATIONS);
	port->first_qp = be32_at(body + WIRE_PORT_FIRST_QP);
	port->qp_count = be32_at(body + WIRE_PORT_QP_COUNT);
	port->hello = be32_at(body + WIRE_PORT_HELLO);
	port->lid = unicast_or_none(be16_at(body + WIRE_PORT_LID));
	port->sm_lid = unicast_or_none(be16_at(body + WIRE_PORT_SM_LID));
	port->lmc = body[WIRE_PORT_LMC];
	port->sm_sl = body[WIRE_PORT_SM_SL];
	port->state = body[WIRE_PORT_STATE];
	port->phys_state = body[WIRE_PORT_PHYS_STATE];
	port->mtu_cap = body[WIRE_PORT_MTU_CAP];
	port->mtu = body[WIRE_PORT_MTU];
	port->width = body[WIRE_PORT_WIDTH];
	port->subnet_timeout = body[WIRE_PORT_SUBNET_TIMEOUT];
	port->speed = be16_at(body + WIRE_PORT_SPEED);
	port->guid_count = body[WIRE_PORT_GUID_COUNT];
	port->pkey_count = body[WIRE_PORT_PKEY_COUNT];
	if (!port->node_guid || !port->port_guid)
		return false;
	if (port->lmc > 7 || port->sm_sl > 15 || port->subnet_timeout > 31)
		return false;
	if (port->state < 1 || port->state > STATE_MAX ||
	    port->phys_state > 7)
		return false;
	if (!is_mtu(port->mtu_cap) || !is_mtu(port->mtu))
		return false;
	/* Numbers 0 and 1 are those of QP0 and QP1. */
	if (port->first_qp >= QPN_END || !port->qp_count ||
	    port->qp_count > QPN_END - port->first_qp ||
	    port->first_qp + port->qp_count <= 2)
		return false;
	if (!port->guid_count || port->guid_count > WIRE_GUIDS_MAX ||
	    port->pkey_count > WIRE_PKEYS_MAX)
		return false;
	for (i = 0; i < port->guid_count; i++)
		port->guids[i] = be64_at(body + WIRE_PORT_GUIDS + 8 * i);
	for (i = 0; i < port->pkey_count; i++)
		port->pkeys[i] = be16_at(body + WIRE_PORT_PKEYS + 2 * i);
	return true;
}

void wire_hello_write(u8 *body, u32 sequence, u32 flags, const char *node_desc)
{
	memset(body, 0, WIRE_HELLO_LEN);
	put_be32(body + WIRE_HELLO_SEQUENCE, sequence);
	put_be32(body + WIRE_HELLO_FLAGS, flags);
	memcpy(body + WIRE_HELLO_NODE_DESC, node_desc, WIRE_NODE_DESC_LEN);
}

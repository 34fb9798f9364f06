// SPDX-License-Identifier: GPL-2.0
/* What requester and responder of a reliable connection share. */
#include "hca.h"

/* A packet of a connection. The caller has set opcode, PSN and the rest. */
struct sk_buff *hca_rc_packet(struct hca_qp *qp, struct packet *packet,
			      u8 **payload)
{
	struct hca_dev *dev = qp_dev(qp);

	hca_packet_address(dev, &qp->av, packet);
	packet->migrated = true;
	packet->pkey = hca_pkey(dev, qp->attr.pkey_index);
	packet->dest_qpn = qp->attr.dest_qp_num;
	return hca_packet_alloc(dev, packet, payload);
}

/* How many packets a message has. */
u32 hca_rc_packets(const struct hca_qp *qp, u32 len)
{
	u32 mtu = ib_mtu_enum_to_int(qp->attr.path_mtu);

	return len ? DIV_ROUND_UP(len, mtu) : 1;
}

/* Whether a packet comes from the peer of the connection (IBA 9.6.1.5). */
static bool from_peer(struct hca_qp *qp, const struct packet *packet)
{
	u8 lmc = qp_dev(qp)->port.lmc;

	/* The host may have cleared the path bits of the sender. */
	if ((packet->slid ^ qp->av.dlid) >> lmc)
		return false;
	if (packet->global != qp->av.global)
		return false;
	return !packet->global ||
	       !memcmp(packet->sgid, qp->av.dgid.raw, sizeof(packet->sgid));
}

void hca_rc_receive(struct hca_qp *qp, const struct packet *packet)
{
	struct hca_dev *dev = qp_dev(qp);
	bool response = packet->flags & PKT_RESPONSE;

	if (qp->ib.qp_type != IB_QPT_RC ||
	    (qp->state != IB_QPS_RTR && qp->state != IB_QPS_RTS &&
	     qp->state != IB_QPS_SQD) ||
	    (response && qp->state == IB_QPS_RTR)) {
		hca_count(dev, HCA_STAT_RX_NO_QP);
		return;
	}
	if (!from_peer(qp, packet)) {
		hca_count(dev, HCA_STAT_BAD_ADDRESS);
		return;
	}
	if (!pkey_matches(hca_pkey(dev, qp->attr.pkey_index), packet->pkey)) {
		hca_count(dev, HCA_STAT_BAD_PKEY);
		return;
	}
	if (response)
		hca_rc_response(qp, packet);
	else
		hca_rc_request(qp, packet);
	hca_qp_wake(qp);
}

/* A turn: what is due to the peer first, then requests of our own. */
bool hca_rc_run(struct hca_qp *qp)
{
	if (hca_rc_respond_run(qp))
		return true;
	if (qp->state != IB_QPS_RTS && qp->state != IB_QPS_SQD)
		return false;
	return hca_rc_request_run(qp);
}

// SPDX-License-Identifier: GPL-2.0
/* Datagrams: UD queue pairs, QP0 and QP1, and multicast. */
#include <linux/slab.h>
#include <rdma/ib_mad.h>

#include "hca.h"

/* Space in front of each received datagram, whether it has a GRH or not. */
#define GRH_SPACE	PACKET_GRH_LEN

#define PKEY_DEFAULT	0xffff
/* The virtual lane of subnet management. */
#define VL_MANAGEMENT	15

/* ---- sending */

/* A send fails: it is completed, and those behind it are flushed. */
static void send_failed(struct hca_qp *qp, enum ib_wc_status status)
{
	hca_send_done(qp, status);
	WRITE_ONCE(qp->state, IB_QPS_SQE);
	hca_qp_wake(qp);
}

static void fill_packet(struct hca_qp *qp, const struct hca_send *send,
			struct packet *packet)
{
	struct hca_dev *dev = qp_dev(qp);

	hca_packet_address(dev, &send->ud.av, packet);
	packet->opcode = send->opcode == IB_WR_SEND_WITH_IMM ? UD_SEND_IMM : UD_SEND;
	packet->solicited = send->flags & IB_SEND_SOLICITED;
	packet->migrated = true;
	packet->dest_qpn = send->ud.qpn;
	packet->psn = qp->req.next_psn;
	packet->qkey = send->ud.qkey;
	packet->src_qpn = qp->ib.qp_num;
	packet->imm = send->imm;
	packet->payload_len = send->length;
	if (qp->ib.qp_type == IB_QPT_SMI) {
		packet->vl = VL_MANAGEMENT;
		packet->pkey = PKEY_DEFAULT;
	} else {
		packet->pkey = hca_pkey(dev, send->ud.pkey_index);
	}
}

/* Gives a multicast packet that was sent to other queue pairs of the port. */
static void loop_back(struct hca_qp *qp, const struct sk_buff *skb)
{
	struct packet packet;

	if (packet_read(&packet, skb->data, skb->len))
		hca_ud_receive_multicast(qp_dev(qp), &packet, qp);
}

/* Sends the oldest work request. */
static void send_one(struct hca_qp *qp)
{
	struct hca_dev *dev = qp_dev(qp);
	struct hca_send *send = hca_send_at(qp, qp->sq.tail);
	struct packet packet = {};
	struct sk_buff *skb;
	u8 *payload;

	if (send->length > ib_mtu_enum_to_int(dev->port.mtu)) {
		send_failed(qp, IB_WC_LOC_LEN_ERR);
		return;
	}
	fill_packet(qp, send, &packet);
	qp->req.next_psn = psn_add(qp->req.next_psn, 1);
	skb = hca_packet_alloc(dev, &packet, &payload);
	if (skb && hca_send_payload(qp, send, 0, payload, send->length)) {
		kfree_skb(skb);
		send_failed(qp, IB_WC_LOC_PROT_ERR);
		return;
	}
	/* Without memory, it is lost, as datagrams may be. */
	hca_send_done(qp, IB_WC_SUCCESS);
	if (!skb)
		return;
	if (packet_is_multicast(&packet))
		loop_back(qp, skb);
	hca_packet_send(dev, skb);
}

bool hca_ud_run(struct hca_qp *qp)
{
	int i;

	if (qp->state == IB_QPS_SQD && qp->req.drain) {
		/* Datagrams are done when they are sent. */
		qp->req.drain = false;
		hca_qp_event(qp, IB_EVENT_SQ_DRAINED);
	}
	for (i = 0; i < HCA_BURST; i++) {
		if (qp->state != IB_QPS_RTS || qp->sq.tail == hca_sends_end(qp))
			return false;
		if (!hca_tx_room(qp_dev(qp)))
			break;
		send_one(qp);
	}
	return true;
}

/* ---- receiving */

/* The index of the P_Key of a packet, or -1 if the queue pair rejects it. */
static int check_pkey(struct hca_qp *qp, const struct packet *packet)
{
	struct hca_dev *dev = qp_dev(qp);
	u16 index = qp->attr.pkey_index;

	if (qp->ib.qp_type == IB_QPT_SMI)
		return 0;
	if (qp->ib.qp_type == IB_QPT_GSI)
		return hca_pkey_index(dev, packet->pkey);
	return pkey_matches(hca_pkey(dev, index), packet->pkey) ? index : -1;
}

static bool check_qkey(struct hca_qp *qp, const struct packet *packet)
{
	return qp->ib.qp_type == IB_QPT_SMI || packet->qkey == qp->attr.qkey;
}

static int copy_datagram(struct hca_qp *qp, const struct hca_recv *recv,
			 const struct packet *packet)
{
	u8 no_grh[GRH_SPACE] = {};
	const u8 *grh = packet->grh ? packet->grh : no_grh;
	int err;

	err = hca_copy_local(qp, recv->sge, recv->num_sge, 0, (void *)grh,
			     GRH_SPACE, true);
	if (err)
		return err;
	return hca_copy_local(qp, recv->sge, recv->num_sge, GRH_SPACE,
			      (void *)packet->payload, packet->payload_len, true);
}

void hca_ud_receive(struct hca_dev *dev, struct hca_qp *qp,
		    const struct packet *packet)
{
	struct ib_wc wc = {
		.status = IB_WC_SUCCESS,
		.opcode = IB_WC_RECV,
		.byte_len = GRH_SPACE + packet->payload_len,
		.src_qp = packet->src_qpn,
		.slid = packet->slid,
		.sl = packet->sl,
		.dlid_path_bits = packet->dlid & ((1u << dev->port.lmc) - 1),
		.wc_flags = packet->global ? IB_WC_GRH : 0,
	};
	struct hca_recv recv;
	int index, err;

	if (qp->ib.qp_type == IB_QPT_RC || qp->state < IB_QPS_RTR ||
	    qp->state == IB_QPS_ERR) {
		hca_count(dev, HCA_STAT_RX_NO_QP);
		return;
	}
	index = check_pkey(qp, packet);
	if (index < 0) {
		hca_count(dev, HCA_STAT_BAD_PKEY);
		return;
	}
	if (!check_qkey(qp, packet)) {
		hca_count(dev, HCA_STAT_BAD_QKEY);
		return;
	}
	/*
	 * A datagram that is longer than the receive buffer is dropped, and
	 * the buffer stays: a peer cannot use up or stop the queue that way.
	 */
	err = hca_recv_take(qp, &recv, GRH_SPACE + packet->payload_len);
	if (err) {
		hca_count(dev, err == -ENOBUFS ? HCA_STAT_UD_NO_BUFFER :
						 HCA_STAT_UD_TOO_LONG);
		return;
	}
	wc.pkey_index = index;
	if (packet->opcode == UD_SEND_IMM) {
		wc.wc_flags |= IB_WC_WITH_IMM;
		wc.ex.imm_data = cpu_to_be32(packet->imm);
	}
	if (copy_datagram(qp, &recv, packet)) {
		wc.status = IB_WC_LOC_PROT_ERR;
		hca_recv_done(qp, &recv, &wc, true);
		hca_qp_fail(qp);
		return;
	}
	hca_recv_done(qp, &recv, &wc, packet->solicited);
}

/* ---- multicast */

/*
 * Gives a datagram to the queue pairs that are attached to its group. @sender
 * is the one that sent it, if this port did.
 */
void hca_ud_receive_multicast(struct hca_dev *dev, const struct packet *packet,
			      const struct hca_qp *sender)
{
	struct hca_multicast *member, *next;

	if (!packet->global || !(packet->flags & PKT_DATAGRAM)) {
		hca_count(dev, HCA_STAT_RX_MALFORMED);
		return;
	}
	if (sender && sender->no_loopback)
		return;
	list_for_each_entry_safe(member, next, &dev->multicast, list)
		if (!memcmp(member->gid.raw, packet->dgid, sizeof(packet->dgid)))
			hca_ud_receive(dev, member->qp, packet);
}

static struct hca_multicast *find_member(struct hca_dev *dev, struct hca_qp *qp,
					 const union ib_gid *gid)
{
	struct hca_multicast *member;

	list_for_each_entry(member, &dev->multicast, list)
		if (member->qp == qp && !memcmp(&member->gid, gid, sizeof(*gid)))
			return member;
	return NULL;
}

/* The group is told from others by its GID: the host may share LIDs. */
static int hca_attach_mcast(struct ib_qp *ib, union ib_gid *gid, u16 lid)
{
	struct hca_dev *dev = to_dev(ib->device);
	struct hca_qp *qp = to_qp(ib);
	struct hca_multicast *member;
	int err = 0;

	member = kzalloc(sizeof(*member), GFP_KERNEL);
	if (!member)
		return -ENOMEM;
	member->gid = *gid;
	member->qp = qp;
	mutex_lock(&dev->engine);
	if (find_member(dev, qp, gid))
		goto out;
	if (dev->multicast_count == HCA_MULTICAST_MAX) {
		err = -ENOMEM;
		goto out;
	}
	list_add_tail(&member->list, &dev->multicast);
	dev->multicast_count++;
	member = NULL;
out:
	mutex_unlock(&dev->engine);
	kfree(member);
	return err;
}

static int hca_detach_mcast(struct ib_qp *ib, union ib_gid *gid, u16 lid)
{
	struct hca_dev *dev = to_dev(ib->device);
	struct hca_multicast *member;

	mutex_lock(&dev->engine);
	member = find_member(dev, to_qp(ib), gid);
	if (member) {
		list_del(&member->list);
		dev->multicast_count--;
	}
	mutex_unlock(&dev->engine);
	kfree(member);
	return member ? 0 : -EINVAL;
}

const struct ib_device_ops hca_multicast_ops = {
	.attach_mcast = hca_attach_mcast,
	.detach_mcast = hca_detach_mcast,
};

// SPDX-License-Identifier: GPL-2.0
/*
 * Frames of the wire, and the engine: the work that takes packets from the
 * wire and lets queue pairs send.
 */
#include <linux/etherdevice.h>
#include <linux/if_ether.h>

#include "hca.h"

/* Frames and turns of queue pairs until others may have the mutex. */
#define RX_BUDGET	64
#define QP_BUDGET	16

/* ---- sending */

/* Whether the wire takes more. The engine is woken when it does again. */
bool hca_tx_room(struct hca_dev *dev)
{
	return atomic_read(&dev->tx_in_flight) < HCA_TX_MAX;
}

/* The wire has freed a frame. Runs in any context. */
static void frame_sent(struct sk_buff *skb)
{
	struct hca_dev *dev = skb_shinfo(skb)->destructor_arg;
	int left = atomic_dec_return(&dev->tx_in_flight);

	if (left == HCA_TX_MAX / 2)
		queue_work(dev->wq, &dev->work);
	if (!left)
		wake_up(&dev->tx_idle);
}

/* A frame with room for its headers in front of the body. NULL: no memory. */
struct sk_buff *hca_frame_alloc(struct hca_dev *dev, u32 body_len)
{
	struct sk_buff *skb;
	u32 room;

	if (!dev->wire)
		return NULL;
	room = LL_RESERVED_SPACE(dev->wire) + WIRE_HEADER_LEN;
	skb = alloc_skb(room + body_len + dev->wire->needed_tailroom, GFP_NOIO);
	if (skb)
		skb_reserve(skb, room);
	return skb;
}

void hca_frame_send(struct hca_dev *dev, struct sk_buff *skb, enum wire_kind kind)
{
	u32 len = skb->len;

	wire_header_write(skb_push(skb, WIRE_HEADER_LEN), kind, len);
	skb->dev = dev->wire;
	skb->protocol = htons(WIRE_ETHERTYPE);
	skb->priority = TC_PRIO_CONTROL;
	skb_reset_network_header(skb);
	dev_hard_header(skb, skb->dev, WIRE_ETHERTYPE, skb->dev->broadcast, NULL,
			skb->len);
	atomic_inc(&dev->tx_in_flight);
	skb_shinfo(skb)->destructor_arg = dev;
	skb->destructor = frame_sent;
	if (dev_queue_xmit(skb))
		hca_count(dev, HCA_STAT_TX_DROPPED);
}

/*
 * A frame with the headers of a packet. The caller puts payload_len bytes at
 * @payload. NULL: no memory, and the packet counts as lost.
 */
struct sk_buff *hca_packet_alloc(struct hca_dev *dev, const struct packet *packet,
				 u8 **payload)
{
	u32 len = packet_len(packet);
	struct sk_buff *skb = hca_frame_alloc(dev, len);

	if (!skb) {
		hca_count(dev, HCA_STAT_TX_DROPPED);
		return NULL;
	}
	*payload = packet_write(packet, skb_put(skb, len));
	return skb;
}

void hca_packet_send(struct hca_dev *dev, struct sk_buff *skb)
{
	hca_count(dev, HCA_STAT_TX_PACKETS);
	hca_frame_send(dev, skb, WIRE_PACKET);
}

/* Fills in LRH and GRH. */
void hca_packet_address(struct hca_dev *dev, const struct hca_av *av,
			struct packet *packet)
{
	const struct wire_port *port = &dev->port;

	packet->sl = av->sl;
	packet->dlid = av->dlid;
	packet->slid = port->lid ? port->lid | av->path_bits : PACKET_LID_PERMISSIVE;
	if (!av->global)
		return;
	packet->global = true;
	packet->traffic_class = av->traffic_class;
	packet->flow_label = av->flow_label;
	packet->hop_limit = av->hop_limit;
	put_be64(packet->sgid, port->gid_prefix);
	put_be64(packet->sgid + 8, port->guids[av->sgid_index]);
	memcpy(packet->dgid, av->dgid.raw, sizeof(packet->dgid));
}

/* ---- receiving */

/* A frame of the wire. Runs in a soft interrupt. */
int hca_tap(struct sk_buff *skb, struct net_device *netdev,
	    struct packet_type *type, struct net_device *orig)
{
	struct hca_dev *dev = container_of(type, struct hca_dev, tap);

	if (skb->pkt_type == PACKET_OUTGOING || skb->pkt_type == PACKET_LOOPBACK)
		goto drop;
	skb = skb_share_check(skb, GFP_ATOMIC);
	if (!skb)
		return NET_RX_DROP;
	if (skb_queue_len(&dev->rx) >= HCA_RX_MAX) {
		hca_count(dev, HCA_STAT_RX_OVERRUN);
		goto drop;
	}
	skb_queue_tail(&dev->rx, skb);
	queue_work(dev->wq, &dev->work);
	return NET_RX_SUCCESS;
drop:
	kfree_skb(skb);
	return NET_RX_DROP;
}

static void receive_packet(struct hca_dev *dev, const u8 *raw, size_t len)
{
	struct packet packet;
	struct hca_qp *qp;

	if (!packet_read(&packet, raw, len)) {
		hca_count(dev, HCA_STAT_RX_MALFORMED);
		return;
	}
	hca_count(dev, HCA_STAT_RX_PACKETS);
	if (packet_is_multicast(&packet)) {
		hca_ud_receive_multicast(dev, &packet, NULL);
		return;
	}
	if (packet.global && !hca_owns_gid(dev, packet.dgid)) {
		hca_count(dev, HCA_STAT_BAD_ADDRESS);
		return;
	}
	qp = xa_load(&dev->qps, packet.dest_qpn);
	if (!qp)
		hca_count(dev, HCA_STAT_RX_NO_QP);
	else if (packet.flags & PKT_DATAGRAM)
		hca_ud_receive(dev, qp, &packet);
	else
		hca_rc_receive(qp, &packet);
}

static void receive_frame(struct hca_dev *dev, struct sk_buff *skb)
{
	struct wire_port port;
	enum wire_kind kind;
	const u8 *body;
	size_t len;

	if (skb_linearize(skb) ||
	    !wire_read(skb->data, skb->len, &kind, &body, &len)) {
		hca_count(dev, HCA_STAT_RX_MALFORMED);
		return;
	}
	if (kind == WIRE_PACKET) {
		receive_packet(dev, body, len);
	} else if (kind == WIRE_PORT) {
		if (wire_port_read(&port, body, len))
			hca_port_update(dev, &port);
		else
			hca_count(dev, HCA_STAT_RX_MALFORMED);
	}
}

/* ---- the engine */

/* Gives a queue pair a turn. May be called in any context. */
void hca_qp_wake(struct hca_qp *qp)
{
	struct hca_dev *dev = qp_dev(qp);
	unsigned long flags;

	spin_lock_irqsave(&dev->ready_lock, flags);
	if (!qp->queued) {
		qp->queued = true;
		list_add_tail(&qp->ready, &dev->ready);
	}
	spin_unlock_irqrestore(&dev->ready_lock, flags);
	queue_work(dev->wq, &dev->work);
}

/* No turns any more, for a queue pair that is being destroyed. */
void hca_qp_forget(struct hca_qp *qp)
{
	struct hca_dev *dev = qp_dev(qp);
	unsigned long flags;

	spin_lock_irqsave(&dev->ready_lock, flags);
	if (qp->queued)
		list_del(&qp->ready);
	qp->queued = true;
	spin_unlock_irqrestore(&dev->ready_lock, flags);
}

static struct hca_qp *next_ready(struct hca_dev *dev)
{
	struct hca_qp *qp;

	spin_lock_irq(&dev->ready_lock);
	qp = list_first_entry_or_null(&dev->ready, struct hca_qp, ready);
	if (qp) {
		list_del(&qp->ready);
		qp->queued = false;
	}
	spin_unlock_irq(&dev->ready_lock);
	return qp;
}

static void engine(struct work_struct *work)
{
	struct hca_dev *dev = container_of(work, struct hca_dev, work);
	struct sk_buff *skb;
	struct hca_qp *qp;
	int i;

	mutex_lock(&dev->engine);
	for (i = 0; i < RX_BUDGET; i++) {
		skb = skb_dequeue(&dev->rx);
		if (!skb)
			break;
		receive_frame(dev, skb);
		consume_skb(skb);
	}
	for (i = 0; i < QP_BUDGET && hca_tx_room(dev); i++) {
		qp = next_ready(dev);
		if (!qp)
			break;
		if (hca_qp_run(qp))
			hca_qp_wake(qp);
	}
	mutex_unlock(&dev->engine);
	/* Without room, frame_sent() wakes the engine. */
	if (!skb_queue_empty(&dev->rx) ||
	    (hca_tx_room(dev) && !list_empty(&dev->ready)))
		queue_work(dev->wq, &dev->work);
}

int hca_link_init(struct hca_dev *dev)
{
	mutex_init(&dev->engine);
	spin_lock_init(&dev->ready_lock);
	INIT_LIST_HEAD(&dev->ready);
	INIT_WORK(&dev->work, engine);
	skb_queue_head_init(&dev->rx);
	init_waitqueue_head(&dev->tx_idle);
	dev->wq = alloc_ordered_workqueue("heddle_hca", WQ_MEM_RECLAIM | WQ_HIGHPRI);
	return dev->wq ? 0 : -ENOMEM;
}

/* The wire is detached: nothing arrives. Waits for frames on their way out. */
void hca_link_exit(struct hca_dev *dev)
{
	wait_event(dev->tx_idle, !atomic_read(&dev->tx_in_flight));
	/* frame_sent() may still be about to return. */
	synchronize_rcu();
	destroy_workqueue(dev->wq);
	skb_queue_purge(&dev->rx);
}

// SPDX-License-Identifier: GPL-2.0
/*
 * An InfiniBand adapter of software for virtual machines of Heddle. Its packets
 * travel in frames over an Ethernet device, the wire, to the emulated fabric.
 *
 * This file finds the wire, says hello until the host answers, registers the
 * device, and turns changes of the port into events. The driver has no tables
 * of its own: LID, P_Keys, GUIDs and states are those that the host tells.
 */
#include <linux/etherdevice.h>
#include <linux/module.h>
#include <linux/rtnetlink.h>
#include <linux/utsname.h>
#include <net/net_namespace.h>

#include "hca.h"

/* Room for an MTU of 4096 with all headers. */
#define WIRE_MTU		4352
#define HELLO_INTERVAL		(HZ / 2)
/* Loading the module waits so long for the device, which may come later. */
#define SETUP_WAIT		(5 * HZ)

static char *netdev = "";
module_param(netdev, charp, 0444);
MODULE_PARM_DESC(netdev, "Ethernet device that leads to the fabric (default: the one whose MAC address begins with 06:68:63)");

static struct hca_dev *the_dev;

/* ---- the port */

static void dispatch(struct hca_dev *dev, enum ib_event_type type)
{
	struct ib_event event = {
		.device = &dev->ib,
		.event = type,
		.element.port_num = HCA_PORT,
	};

	if (READ_ONCE(dev->registered))
		ib_dispatch_event(&event);
}

static bool is_active(const struct hca_dev *dev)
{
	return dev->wire_up && dev->port.state == IB_PORT_ACTIVE;
}

static void dispatch_changes(struct hca_dev *dev, const struct wire_port *old,
			     bool was_active)
{
	const struct wire_port *new = &dev->port;

	if (old->gid_prefix != new->gid_prefix ||
	    memcmp(old->guids, new->guids, sizeof(old->guids)))
		dispatch(dev, IB_EVENT_GID_CHANGE);
	if (memcmp(old->pkeys, new->pkeys, sizeof(old->pkeys)))
		dispatch(dev, IB_EVENT_PKEY_CHANGE);
	if (old->lid != new->lid || old->lmc != new->lmc)
		dispatch(dev, IB_EVENT_LID_CHANGE);
	if (old->sm_lid != new->sm_lid || old->sm_sl != new->sm_sl)
		dispatch(dev, IB_EVENT_SM_CHANGE);
	if (was_active != is_active(dev))
		dispatch(dev, was_active ? IB_EVENT_PORT_ERR : IB_EVENT_PORT_ACTIVE);
	if (old->registrations != new->registrations)
		dispatch(dev, IB_EVENT_CLIENT_REREGISTER);
}

/* The host has told the state of the port. For the engine. */
void hca_port_update(struct hca_dev *dev, const struct wire_port *port)
{
	struct wire_port old = dev->port;
	bool was_active = is_active(dev);
	unsigned long flags;

	spin_lock_irqsave(&dev->port_lock, flags);
	dev->port = *port;
	/* Not a part of the state. */
	dev->port.hello = 0;
	spin_unlock_irqrestore(&dev->port_lock, flags);
	if (memcmp(&old, &dev->port, sizeof(old)))
		dev->port_changes++;
	dispatch_changes(dev, &old, was_active);
	if (port->hello && port->hello != dev->hello_answered) {
		WRITE_ONCE(dev->hello_answered, port->hello);
		if (!READ_ONCE(dev->closing))
			mod_delayed_work(system_long_wq, &dev->setup, 0);
	}
}

static void wire_changed(struct hca_dev *dev, bool up)
{
	bool was_active;
	unsigned long flags;

	mutex_lock(&dev->engine);
	was_active = is_active(dev);
	spin_lock_irqsave(&dev->port_lock, flags);
	dev->wire_up = up;
	spin_unlock_irqrestore(&dev->port_lock, flags);
	dispatch_changes(dev, &dev->port, was_active);
	mutex_unlock(&dev->engine);
}

/* ---- the wire */

static bool is_wire(const struct net_device *candidate)
{
	static const u8 prefix[] = WIRE_MAC_PREFIX;

	if (*netdev)
		return !strcmp(candidate->name, netdev);
	return candidate->type == ARPHRD_ETHER &&
	       !memcmp(candidate->dev_addr, prefix, sizeof(prefix));
}

/* Takes the wire, if there is one. Needs RTNL. */
static void attach_wire(struct hca_dev *dev)
{
	struct net_device *candidate, *found = NULL;
	int err;

	ASSERT_RTNL();
	for_each_netdev(&init_net, candidate) {
		if (is_wire(candidate)) {
			found = candidate;
			break;
		}
	}
	if (!found)
		return;
	err = dev_set_mtu(found, max_t(u32, found->mtu, WIRE_MTU));
	if (!err)
		err = dev_change_flags(found, found->flags | IFF_UP, NULL);
	if (err) {
		netdev_err(found, "heddle_hca: cannot be used: %d\n", err);
		return;
	}
	netdev_info(found, "heddle_hca: carries InfiniBand packets\n");
	dev_hold(found);
	dev->tap.type = htons(WIRE_ETHERTYPE);
	dev->tap.dev = found;
	dev->tap.func = hca_tap;
	mutex_lock(&dev->engine);
	dev->wire = found;
	mutex_unlock(&dev->engine);
	dev_add_pack(&dev->tap);
	wire_changed(dev, true);
}

/* Needs RTNL. */
static void detach_wire(struct hca_dev *dev)
{
	struct net_device *wire = dev->wire;

	ASSERT_RTNL();
	wire_changed(dev, false);
	dev_remove_pack(&dev->tap);
	mutex_lock(&dev->engine);
	dev->wire = NULL;
	mutex_unlock(&dev->engine);
	dev_put(wire);
}

static int netdev_event(struct notifier_block *notifier, unsigned long event,
			void *data)
{
	struct hca_dev *dev = container_of(notifier, struct hca_dev, notifier);
	struct net_device *changed = netdev_notifier_info_to_dev(data);

	if (!dev->wire) {
		/* It is opened later: its driver may not be ready. */
		if (event == NETDEV_REGISTER && is_wire(changed) && !dev->closing)
			mod_delayed_work(system_long_wq, &dev->setup, 0);
		return NOTIFY_DONE;
	}
	if (changed != dev->wire)
		return NOTIFY_DONE;
	switch (event) {
	case NETDEV_UP:
		wire_changed(dev, true);
		/* What has changed meanwhile was not heard. */
		hca_hello(dev);
		break;
	case NETDEV_GOING_DOWN:
		wire_changed(dev, false);
		break;
	case NETDEV_UNREGISTER:
		detach_wire(dev);
		break;
	}
	return NOTIFY_DONE;
}

/* ---- hello, and registration */

/* Tells the host something new, until it answers. */
void hca_hello(struct hca_dev *dev)
{
	unsigned long flags;

	spin_lock_irqsave(&dev->port_lock, flags);
	dev->hello++;
	if (!dev->hello)
		dev->hello++;
	spin_unlock_irqrestore(&dev->port_lock, flags);
	if (!READ_ONCE(dev->closing))
		mod_delayed_work(system_long_wq, &dev->setup, 0);
}

static void send_hello(struct hca_dev *dev)
{
	u8 body[WIRE_HELLO_LEN];
	unsigned long flags;
	struct sk_buff *skb;

	spin_lock_irqsave(&dev->port_lock, flags);
	wire_hello_write(body, dev->hello, dev->issm ? WIRE_HELLO_ISSM : 0,
			 dev->ib.node_desc);
	spin_unlock_irqrestore(&dev->port_lock, flags);
	mutex_lock(&dev->engine);
	skb = hca_frame_alloc(dev, sizeof(body));
	if (skb) {
		skb_put_data(skb, body, sizeof(body));
		hca_frame_send(dev, skb, WIRE_HELLO);
	}
	mutex_unlock(&dev->engine);
}

static int register_device(struct hca_dev *dev)
{
	struct ib_device *ib = &dev->ib;
	u32 changes;
	int err;

	ib->node_type = RDMA_NODE_IB_CA;
	ib->phys_port_cnt = 1;
	ib->num_comp_vectors = 1;
	ib->local_dma_lkey = HCA_DMA_LKEY;
	ib->uverbs_cmd_mask |= BIT_ULL(IB_USER_VERBS_CMD_POLL_CQ) |
			       BIT_ULL(IB_USER_VERBS_CMD_POST_RECV) |
			       BIT_ULL(IB_USER_VERBS_CMD_POST_SEND) |
			       BIT_ULL(IB_USER_VERBS_CMD_POST_SRQ_RECV) |
			       BIT_ULL(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ);
	mutex_lock(&dev->engine);
	ib->node_guid = cpu_to_be64(dev->port.node_guid);
	changes = dev->port_changes;
	mutex_unlock(&dev->engine);
	ib_set_device_ops(ib, &hca_device_ops);
	ib_set_device_ops(ib, &hca_cq_ops);
	ib_set_device_ops(ib, &hca_mr_ops);
	ib_set_device_ops(ib, &hca_multicast_ops);
	ib_set_device_ops(ib, &hca_post_ops);
	ib_set_device_ops(ib, &hca_qp_ops);
	ib_set_device_ops(ib, &hca_srq_ops);
	/* Without a DMA device, addresses are those of the kernel. */
	err = ib_register_device(ib, "heddle%d", NULL);
	if (err) {
		pr_err("heddle_hca: cannot register the device: %d\n", err);
		return err;
	}
	mutex_lock(&dev->engine);
	WRITE_ONCE(dev->registered, true);
	if (dev->port_changes != changes) {
		dispatch(dev, IB_EVENT_GID_CHANGE);
		dispatch(dev, IB_EVENT_PKEY_CHANGE);
		dispatch(dev, IB_EVENT_LID_CHANGE);
		dispatch(dev, is_active(dev) ? IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR);
	}
	mutex_unlock(&dev->engine);
	return 0;
}

/* Does the next step. Runs again until the host has answered. */
static void setup(struct work_struct *work)
{
	struct hca_dev *dev = container_of(to_delayed_work(work), struct hca_dev,
					   setup);
	bool answered;

	if (READ_ONCE(dev->closing))
		return;
	rtnl_lock();
	if (!dev->wire)
		attach_wire(dev);
	rtnl_unlock();
	answered = READ_ONCE(dev->hello_answered) == READ_ONCE(dev->hello);
	if (dev->wire && !answered) {
		send_hello(dev);
		queue_delayed_work(system_long_wq, &dev->setup, HELLO_INTERVAL);
	}
	if (dev->hello_answered && !dev->registered) {
		register_device(dev);
		complete_all(&dev->set_up);
	}
}

/* ---- the module */

static struct hca_dev *dev_create(void)
{
	struct hca_dev *dev = ib_alloc_device(hca_dev, ib);

	if (!dev)
		return NULL;
	spin_lock_init(&dev->port_lock);
	INIT_DELAYED_WORK(&dev->setup, setup);
	init_completion(&dev->set_up);
	INIT_LIST_HEAD(&dev->multicast);
	xa_init_flags(&dev->qps, XA_FLAGS_ALLOC);
	xa_init_flags(&dev->mrs, XA_FLAGS_ALLOC);
	get_random_bytes(&dev->hello, sizeof(dev->hello));
	dev->hello |= 1;
	snprintf(dev->ib.node_desc, sizeof(dev->ib.node_desc), "%.50s heddle0",
		 init_utsname()->nodename);
	if (hca_link_init(dev)) {
		ib_dealloc_device(&dev->ib);
		return NULL;
	}
	return dev;
}

static void dev_destroy(struct hca_dev *dev)
{
	hca_link_exit(dev);
	xa_destroy(&dev->qps);
	xa_destroy(&dev->mrs);
	ib_dealloc_device(&dev->ib);
}

static int __init heddle_hca_init(void)
{
	struct hca_dev *dev = dev_create();
	int err;

	if (!dev)
		return -ENOMEM;
	dev->notifier.notifier_call = netdev_event;
	/* Reports the Ethernet devices that there are. */
	err = register_netdevice_notifier(&dev->notifier);
	if (err) {
		cancel_delayed_work_sync(&dev->setup);
		dev_destroy(dev);
		return err;
	}
	the_dev = dev;
	if (!wait_for_completion_timeout(&dev->set_up, SETUP_WAIT))
		pr_info("heddle_hca: no answer from the fabric yet\n");
	return 0;
}

static void __exit heddle_hca_exit(void)
{
	struct hca_dev *dev = the_dev;

	WRITE_ONCE(dev->closing, true);
	cancel_delayed_work_sync(&dev->setup);
	if (dev->registered)
		ib_unregister_device(&dev->ib);
	WRITE_ONCE(dev->registered, false);
	/* Reports that all Ethernet devices go, and so detaches the wire. */
	unregister_netdevice_notifier(&dev->notifier);
	/* What has arrived since may have started it once more. */
	flush_workqueue(dev->wq);
	cancel_delayed_work_sync(&dev->setup);
	dev_destroy(dev);
	the_dev = NULL;
}

module_init(heddle_hca_init);
module_exit(heddle_hca_exit);

MODULE_DESCRIPTION("InfiniBand adapter of software for virtual machines of Heddle");
MODULE_AUTHOR("The Heddle authors");
MODULE_VERSION("0.1.0");
MODULE_LICENSE("GPL");

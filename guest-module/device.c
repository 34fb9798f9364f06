// SPDX-License-Identifier: GPL-2.0
/* The device and its port, protection domains, address handles, counters. */
#include <linux/module.h>
#include <linux/sysfs.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>

#include "hca.h"

/* The OUI of the MAC addresses, as PCI has no number for this device. */
#define VENDOR_ID	0x066863
#define FIRMWARE	"1.0.0"

#define DEFAULT_GID_PREFIX	0xfe80000000000000ull

static int hca_query_device(struct ib_device *ib, struct ib_device_attr *attr,
			    struct ib_udata *udata)
{
	struct hca_dev *dev = to_dev(ib);

	if (udata && (udata->inlen || udata->outlen))
		return -EINVAL;
	memset(attr, 0, sizeof(*attr));
	attr->fw_ver = 1ull << 32;
	attr->sys_image_guid = cpu_to_be64(dev->port.system_guid);
	attr->max_mr_size = ~0ull;
	attr->page_size_cap = ~0ull << PAGE_SHIFT & 0xffffffff;
	attr->vendor_id = VENDOR_ID;
	attr->vendor_part_id = 1;
	attr->hw_ver = 1;
	attr->max_qp = min_t(u32, dev->port.qp_count, 65536);
	attr->max_qp_wr = HCA_WR_MAX;
	attr->device_cap_flags = IB_DEVICE_BAD_PKEY_CNTR |
				 IB_DEVICE_BAD_QKEY_CNTR |
				 IB_DEVICE_CURR_QP_STATE_MOD |
				 IB_DEVICE_MEM_MGT_EXTENSIONS |
				 IB_DEVICE_PORT_ACTIVE_EVENT |
				 IB_DEVICE_RC_RNR_NAK_GEN |
				 IB_DEVICE_SYS_IMAGE_GUID;
	attr->kernel_cap_flags = IBK_LOCAL_DMA_LKEY |
				 IBK_BLOCK_MULTICAST_LOOPBACK;
	attr->max_send_sge = HCA_SGE_MAX;
	attr->max_recv_sge = HCA_SGE_MAX;
	attr->max_sge_rd = HCA_SGE_MAX;
	attr->max_cq = 65536;
	attr->max_cqe = HCA_CQE_MAX;
	attr->max_mr = 1 << 20;
	attr->max_pd = 65536;
	attr->max_ah = 65536;
	attr->max_qp_rd_atom = HCA_RD_ATOMIC_MAX;
	attr->max_qp_init_rd_atom = HCA_RD_ATOMIC_MAX;
	attr->max_res_rd_atom = 65536;
	attr->atomic_cap = IB_ATOMIC_HCA;
	attr->max_mcast_grp = HCA_MULTICAST_MAX;
	attr->max_mcast_qp_attach = HCA_MULTICAST_MAX;
	attr->max_total_mcast_qp_attach = HCA_MULTICAST_MAX;
	attr->max_srq = 65536;
	attr->max_srq_wr = HCA_WR_MAX;
	attr->max_srq_sge = HCA_SGE_MAX;
	attr->max_fast_reg_page_list_len = HCA_FAST_PAGES_MAX;
	attr->max_pkeys = WIRE_PKEYS_MAX;
	attr->local_ca_ack_delay = 15;	/* 134 ms: emulated machines pause */
	return 0;
}

/* ib_core has zeroed the attributes, and adds the subnet prefix of GID 0. */
static int hca_query_port(struct ib_device *ib, u32 port_num,
			  struct ib_port_attr *attr)
{
	struct hca_dev *dev = to_dev(ib);
	const struct wire_port *port = &dev->port;
	unsigned long flags;

	spin_lock_irqsave(&dev->port_lock, flags);
	if (dev->wire_up) {
		attr->state = port->state;
		attr->phys_state = port->phys_state;
	} else {
		attr->state = IB_PORT_DOWN;
		attr->phys_state = IB_PORT_PHYS_STATE_POLLING;
	}
	attr->max_mtu = port->mtu_cap;
	attr->active_mtu = port->mtu;
	attr->phys_mtu = ib_mtu_enum_to_int(port->mtu);
	attr->gid_tbl_len = WIRE_GUIDS_MAX;
	attr->port_cap_flags = port->capability & ~IB_PORT_SM;
	if (dev->issm)
		attr->port_cap_flags |= IB_PORT_SM;
	attr->max_msg_sz = HCA_MSG_MAX;
	attr->pkey_tbl_len = WIRE_PKEYS_MAX;
	attr->lid = port->lid;
	attr->sm_lid = port->sm_lid;
	attr->lmc = port->lmc;
	attr->sm_sl = port->sm_sl;
	attr->subnet_timeout = port->subnet_timeout;
	attr->max_vl_num = 1;
	attr->active_width = port->width;
	attr->active_speed = port->speed;
	spin_unlock_irqrestore(&dev->port_lock, flags);
	return 0;
}

static int hca_get_port_immutable(struct ib_device *ib, u32 port_num,
				  struct ib_port_immutable *immutable)
{
	immutable->pkey_tbl_len = WIRE_PKEYS_MAX;
	immutable->gid_tbl_len = WIRE_GUIDS_MAX;
	immutable->core_cap_flags = RDMA_CORE_PORT_IBA_IB;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	return 0;
}

static enum rdma_link_layer hca_get_link_layer(struct ib_device *ib,
					       u32 port_num)
{
	return IB_LINK_LAYER_INFINIBAND;
}

static int hca_query_gid(struct ib_device *ib, u32 port_num, int index,
			 union ib_gid *gid)
{
	struct hca_dev *dev = to_dev(ib);
	unsigned long flags;

	memset(gid, 0, sizeof(*gid));
	if (index < 0 || index >= WIRE_GUIDS_MAX)
		return -EINVAL;
	spin_lock_irqsave(&dev->port_lock, flags);
	if (index < dev->port.guid_count) {
		gid->global.subnet_prefix = cpu_to_be64(dev->port.gid_prefix);
		gid->global.interface_id = cpu_to_be64(dev->port.guids[index]);
	}
	spin_unlock_irqrestore(&dev->port_lock, flags);
	return 0;
}

static int hca_query_pkey(struct ib_device *ib, u32 port_num, u16 index,
			  u16 *pkey)
{
	struct hca_dev *dev = to_dev(ib);
	unsigned long flags;

	if (index >= WIRE_PKEYS_MAX)
		return -EINVAL;
	spin_lock_irqsave(&dev->port_lock, flags);
	*pkey = dev->port.pkeys[index];
	spin_unlock_irqrestore(&dev->port_lock, flags);
	return 0;
}

/* For the engine. 0 if the entry is empty. */
u16 hca_pkey(struct hca_dev *dev, u16 index)
{
	return index < WIRE_PKEYS_MAX ? dev->port.pkeys[index] : 0;
}

/* For the engine: the entry that accepts a P_Key, or -1. */
int hca_pkey_index(struct hca_dev *dev, u16 pkey)
{
	int i;

	for (i = 0; i < dev->port.pkey_count; i++)
		if (pkey_matches(dev->port.pkeys[i], pkey))
			return i;
	return -1;
}

/* For the engine: whether a GID is one of the port's. */
bool hca_owns_gid(struct hca_dev *dev, const u8 *gid)
{
	u64 prefix = be64_at(gid), guid = be64_at(gid + 8);
	int i;

	if (prefix != dev->port.gid_prefix && prefix != DEFAULT_GID_PREFIX)
		return false;
	for (i = 0; i < dev->port.guid_count; i++)
		if (guid && dev->port.guids[i] == guid)
			return true;
	return false;
}

/* A subnet manager opens or closes issm: the host has to know. */
static int hca_modify_port(struct ib_device *ib, u32 port_num, int mask,
			   struct ib_port_modify *modify)
{
	struct hca_dev *dev = to_dev(ib);
	unsigned long flags;

	spin_lock_irqsave(&dev->port_lock, flags);
	if (modify->set_port_cap_mask & IB_PORT_SM)
		dev->issm = true;
	if (modify->clr_port_cap_mask & IB_PORT_SM)
		dev->issm = false;
	spin_unlock_irqrestore(&dev->port_lock, flags);
	hca_hello(dev);
	return 0;
}

static int hca_modify_device(struct ib_device *ib, int mask,
			     struct ib_device_modify *modify)
{
	struct hca_dev *dev = to_dev(ib);
	unsigned long flags;

	if (mask & ~IB_DEVICE_MODIFY_NODE_DESC)
		return -EOPNOTSUPP;
	if (mask & IB_DEVICE_MODIFY_NODE_DESC) {
		spin_lock_irqsave(&dev->port_lock, flags);
		memcpy(ib->node_desc, modify->node_desc, IB_DEVICE_NODE_DESC_MAX);
		spin_unlock_irqrestore(&dev->port_lock, flags);
		hca_hello(dev);
	}
	return 0;
}

static void hca_get_dev_fw_str(struct ib_device *ib, char *str)
{
	strscpy(str, FIRMWARE, IB_FW_VERSION_NAME_MAX);
}

static ssize_t hca_type_show(struct device *device,
			     struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "heddle\n");
}
static DEVICE_ATTR_RO(hca_type);

static ssize_t board_id_show(struct device *device,
			     struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "HEDDLE_SOFTWARE_HCA\n");
}
static DEVICE_ATTR_RO(board_id);

static struct attribute *hca_attributes[] = {
	&dev_attr_hca_type.attr,
	&dev_attr_board_id.attr,
	NULL
};

static const struct attribute_group hca_attribute_group = {
	.attrs = hca_attributes,
};

static const struct rdma_stat_desc stat_descs[HCA_STATS] = {
	[HCA_STAT_TX_PACKETS].name = "tx_packets",
	[HCA_STAT_RX_PACKETS].name = "rx_packets",
	[HCA_STAT_TX_DROPPED].name = "tx_dropped",
	[HCA_STAT_RX_OVERRUN].name = "rx_overrun",
	[HCA_STAT_RX_MALFORMED].name = "rx_malformed",
	[HCA_STAT_RX_NO_QP].name = "rx_no_qp",
	[HCA_STAT_BAD_PKEY].name = "bad_pkey",
	[HCA_STAT_BAD_QKEY].name = "bad_qkey",
	[HCA_STAT_BAD_ADDRESS].name = "bad_address",
	[HCA_STAT_UD_NO_BUFFER].name = "ud_no_buffer",
	[HCA_STAT_UD_TOO_LONG].name = "ud_too_long",
	[HCA_STAT_RC_TIMEOUTS].name = "rc_timeouts",
	[HCA_STAT_RC_RESENT].name = "rc_resent",
	[HCA_STAT_RNR_NAK_SENT].name = "rnr_nak_sent",
	[HCA_STAT_RNR_NAK_RECEIVED].name = "rnr_nak_received",
	[HCA_STAT_SEQ_NAK_SENT].name = "seq_nak_sent",
	[HCA_STAT_SEQ_NAK_RECEIVED].name = "seq_nak_received",
	[HCA_STAT_DUPLICATES].name = "duplicates",
};

static struct rdma_hw_stats *hca_alloc_hw_port_stats(struct ib_device *ib,
						     u32 port_num)
{
	return rdma_alloc_hw_stats_struct(stat_descs, HCA_STATS,
					  RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

static int hca_get_hw_stats(struct ib_device *ib, struct rdma_hw_stats *stats,
			    u32 port_num, int index)
{
	struct hca_dev *dev = to_dev(ib);
	int i;

	for (i = 0; i < HCA_STATS; i++)
		stats->value[i] = atomic64_read(&dev->stats[i]);
	return HCA_STATS;
}

static int hca_alloc_ucontext(struct ib_ucontext *context, struct ib_udata *udata)
{
	return 0;
}

static void hca_dealloc_ucontext(struct ib_ucontext *context)
{
}

/* Nothing is mapped into processes, so the module can go while they run. */
static void hca_disassociate_ucontext(struct ib_ucontext *context)
{
}

static int hca_alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

static int hca_dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

bool hca_av_valid(struct hca_dev *dev, const struct rdma_ah_attr *attr)
{
	if (rdma_ah_get_dlid(attr) > PACKET_LID_PERMISSIVE ||
	    rdma_ah_get_sl(attr) > 15)
		return false;
	return !(rdma_ah_get_ah_flags(attr) & IB_AH_GRH) ||
	       rdma_ah_read_grh(attr)->sgid_index < WIRE_GUIDS_MAX;
}

void hca_av_read(struct hca_av *av, const struct rdma_ah_attr *attr)
{
	memset(av, 0, sizeof(*av));
	av->dlid = rdma_ah_get_dlid(attr);
	av->sl = rdma_ah_get_sl(attr);
	av->path_bits = rdma_ah_get_path_bits(attr);
	if (rdma_ah_get_ah_flags(attr) & IB_AH_GRH) {
		const struct ib_global_route *grh = rdma_ah_read_grh(attr);

		av->global = true;
		av->dgid = grh->dgid;
		av->sgid_index = grh->sgid_index;
		av->hop_limit = grh->hop_limit;
		av->traffic_class = grh->traffic_class;
		av->flow_label = grh->flow_label;
	}
}

void hca_av_write(const struct hca_av *av, struct rdma_ah_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->type = RDMA_AH_ATTR_TYPE_IB;
	rdma_ah_set_port_num(attr, HCA_PORT);
	rdma_ah_set_dlid(attr, av->dlid);
	rdma_ah_set_sl(attr, av->sl);
	rdma_ah_set_path_bits(attr, av->path_bits);
	if (av->global) {
		rdma_ah_set_grh(attr, NULL, av->flow_label, av->sgid_index,
				av->hop_limit, av->traffic_class);
		rdma_ah_set_dgid_raw(attr, (void *)av->dgid.raw);
	}
}

static int hca_create_ah(struct ib_ah *ib, struct rdma_ah_init_attr *attr,
			 struct ib_udata *udata)
{
	if (!hca_av_valid(to_dev(ib->device), attr->ah_attr))
		return -EINVAL;
	hca_av_read(&to_ah(ib)->av, attr->ah_attr);
	return 0;
}

static int hca_query_ah(struct ib_ah *ib, struct rdma_ah_attr *attr)
{
	hca_av_write(&to_ah(ib)->av, attr);
	return 0;
}

static int hca_destroy_ah(struct ib_ah *ib, u32 flags)
{
	return 0;
}

/*
 * There is no process_mad: all management datagrams go out to the host, whose
 * agents answer for the port.
 */
const struct ib_device_ops hca_device_ops = {
	.owner = THIS_MODULE,
	/*
	 * The user-space driver for this number, libipathverbs, with this
	 * version of its interface leaves everything to the kernel.
	 */
	.driver_id = RDMA_DRIVER_QIB,
	.uverbs_abi_ver = 1,
	.device_group = &hca_attribute_group,

	.alloc_hw_port_stats = hca_alloc_hw_port_stats,
	.alloc_pd = hca_alloc_pd,
	.alloc_ucontext = hca_alloc_ucontext,
	.create_ah = hca_create_ah,
	.create_user_ah = hca_create_ah,
	.dealloc_pd = hca_dealloc_pd,
	.dealloc_ucontext = hca_dealloc_ucontext,
	.destroy_ah = hca_destroy_ah,
	.disassociate_ucontext = hca_disassociate_ucontext,
	.get_dev_fw_str = hca_get_dev_fw_str,
	.get_hw_stats = hca_get_hw_stats,
	.get_link_layer = hca_get_link_layer,
	.get_port_immutable = hca_get_port_immutable,
	.modify_device = hca_modify_device,
	.modify_port = hca_modify_port,
	.query_ah = hca_query_ah,
	.query_device = hca_query_device,
	.query_gid = hca_query_gid,
	.query_pkey = hca_query_pkey,
	.query_port = hca_query_port,

	INIT_RDMA_OBJ_SIZE(ib_ah, hca_ah, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, hca_pd, ib),
	INIT_RDMA_OBJ_SIZE(ib_ucontext, hca_ucontext, ib),
};

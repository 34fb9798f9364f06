// SPDX-License-Identifier: GPL-2.0
/*
 * Memory regions and access to them.
 *
 * The device has no DMA: addresses in work requests of the kernel are virtual
 * addresses, and pages of user memory are reached by the kernel's mapping of
 * all memory. A key is an index into hca_dev.mrs, and 8 bits that change.
 */
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/random.h>

#include "hca.h"

#ifndef CONFIG_64BIT
#error "pages of user memory must be mapped by the kernel"
#endif

#define KEY_BITS	8
#define INDEX_LIMIT	XA_LIMIT(1, (1u << 24) - 1)

#define REMOTE_ACCESS	(IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE | \
			 IB_ACCESS_REMOTE_ATOMIC)

static struct hca_mr *mr_alloc(struct ib_pd *pd, enum hca_mr_kind kind,
			       u32 page_max)
{
	struct hca_mr *mr = kzalloc(sizeof(*mr), GFP_KERNEL);

	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->kind = kind;
	mr->page_shift = PAGE_SHIFT;
	mr->page_max = page_max;
	mr->ib.device = pd->device;
	mr->ib.pd = pd;
	if (page_max) {
		mr->pages = kvcalloc(page_max, sizeof(*mr->pages),
				     GFP_KERNEL_ACCOUNT);
		if (!mr->pages) {
			kfree(mr);
			return ERR_PTR(-ENOMEM);
		}
	}
	return mr;
}

static void mr_free(struct hca_mr *mr)
{
	if (mr->umem)
		ib_umem_release(mr->umem);
	kvfree(mr->pages);
	kfree(mr);
}

/* Gives a region its key; from now on the engine finds it. */
static struct ib_mr *mr_publish(struct hca_mr *mr)
{
	struct hca_dev *dev = to_dev(mr->ib.device);
	u32 index;
	u8 key;
	int err;

	get_random_bytes(&key, sizeof(key));
	mutex_lock(&dev->engine);
	err = xa_alloc_cyclic(&dev->mrs, &index, mr, INDEX_LIMIT, &dev->next_mr,
			      GFP_NOIO);
	if (err >= 0) {
		mr->key = index << KEY_BITS | key;
		mr->ib.lkey = mr->key;
		mr->ib.rkey = mr->key;
	}
	mutex_unlock(&dev->engine);
	if (err < 0) {
		mr_free(mr);
		return ERR_PTR(err);
	}
	return &mr->ib;
}

static struct ib_mr *hca_get_dma_mr(struct ib_pd *pd, int access)
{
	struct hca_mr *mr = mr_alloc(pd, HCA_MR_DMA, 0);

	if (IS_ERR(mr))
		return ERR_CAST(mr);
	mr->access = access;
	mr->length = ~0ull;
	mr->valid = true;
	return mr_publish(mr);
}

static struct ib_mr *hca_reg_user_mr(struct ib_pd *pd, u64 start, u64 length,
				     u64 iova, int access, struct ib_udata *udata)
{
	struct sg_page_iter pages;
	struct ib_umem *umem;
	struct hca_mr *mr;

	umem = ib_umem_get(pd->device, start, length, access);
	if (IS_ERR(umem))
		return ERR_CAST(umem);
	mr = mr_alloc(pd, HCA_MR_USER, ib_umem_num_pages(umem));
	if (IS_ERR(mr)) {
		ib_umem_release(umem);
		return ERR_CAST(mr);
	}
	for_each_sgtable_page(&umem->sgt_append.sgt, &pages, 0) {
		if (mr->page_count == mr->page_max)
			break;
		mr->pages[mr->page_count++] =
			page_address(sg_page_iter_page(&pages));
	}
	mr->umem = umem;
	mr->iova = iova;
	mr->length = length;
	mr->offset = ib_umem_offset(umem);
	mr->access = access;
	mr->valid = true;
	return mr_publish(mr);
}

static struct ib_mr *hca_alloc_mr(struct ib_pd *pd, enum ib_mr_type type,
				  u32 max_num_sg)
{
	struct hca_mr *mr;

	if (type != IB_MR_TYPE_MEM_REG)
		return ERR_PTR(-EOPNOTSUPP);
	if (!max_num_sg || max_num_sg > HCA_FAST_PAGES_MAX)
		return ERR_PTR(-EINVAL);
	mr = mr_alloc(pd, HCA_MR_FAST, max_num_sg);
	if (IS_ERR(mr))
		return ERR_CAST(mr);
	return mr_publish(mr);
}

static int set_page(struct ib_mr *ib, u64 address)
{
	struct hca_mr *mr = to_mr(ib);

	if (mr->page_count == mr->page_max)
		return -ENOMEM;
	mr->pages[mr->page_count++] = (void *)(uintptr_t)address;
	return 0;
}

/* The region is not valid while its owner calls this. */
static int hca_map_mr_sg(struct ib_mr *ib, struct scatterlist *sg, int count,
			 unsigned int *offset)
{
	struct hca_mr *mr = to_mr(ib);

	if (!is_power_of_2(ib->page_size) || ib->page_size < PAGE_SIZE)
		return -EINVAL;
	mr->page_count = 0;
	mr->page_shift = ilog2(ib->page_size);
	return ib_sg_to_pages(ib, sg, count, offset, set_page);
}

static int hca_dereg_mr(struct ib_mr *ib, struct ib_udata *udata)
{
	struct hca_dev *dev = to_dev(ib->device);
	struct hca_mr *mr = to_mr(ib);

	mutex_lock(&dev->engine);
	xa_erase(&dev->mrs, mr->key >> KEY_BITS);
	mutex_unlock(&dev->engine);
	mr_free(mr);
	return 0;
}

static bool covers(const struct hca_mr *mr, u64 address, u32 len)
{
	return address >= mr->iova && address - mr->iova <= mr->length &&
	       len <= mr->length - (address - mr->iova);
}

/* The region that allows this access; NULL if none does. */
static struct hca_mr *mr_find(struct hca_qp *qp, u32 key, u64 address, u32 len,
			      int access)
{
	struct hca_mr *mr = xa_load(&qp_dev(qp)->mrs, key >> KEY_BITS);

	if (!mr || !mr->valid || mr->key != key || mr->ib.pd != qp->ib.pd)
		return NULL;
	if (access & ~mr->access)
		return NULL;
	if (mr->kind == HCA_MR_DMA) {
		if (qp->user || address + len < address)
			return NULL;
		/* Peers name any address, and not all are memory. */
		if ((access & REMOTE_ACCESS) && len &&
		    (!virt_addr_valid(address) ||
		     !virt_addr_valid(address + len - 1)))
			return NULL;
		return mr;
	}
	return covers(mr, address, len) ? mr : NULL;
}

/* Copies from or to a region; the range was checked. */
static int mr_copy(struct hca_mr *mr, u64 address, void *data, u32 len,
		   bool to_memory)
{
	u64 at = address - mr->iova + mr->offset;
	u32 page_size = 1u << mr->page_shift;

	if (mr->kind == HCA_MR_DMA) {
		void *memory = (void *)(uintptr_t)address;

		memcpy(to_memory ? memory : data, to_memory ? data : memory, len);
		return 0;
	}
	while (len) {
		u64 page = at >> mr->page_shift;
		u32 in_page = at & (page_size - 1);
		u32 part = min(len, page_size - in_page);
		void *memory;

		if (page >= mr->page_count)
			return -EFAULT;
		memory = mr->pages[page] + in_page;
		memcpy(to_memory ? memory : data, to_memory ? data : memory, part);
		data += part;
		at += part;
		len -= part;
	}
	return 0;
}

static int copy_sge(struct hca_qp *qp, const struct ib_sge *sge, u32 skip,
		    void *data, u32 len, bool to_memory)
{
	struct hca_mr *mr;

	if (sge->lkey == HCA_DMA_LKEY && !qp->user) {
		void *memory = (void *)(uintptr_t)sge->addr + skip;

		memcpy(to_memory ? memory : data, to_memory ? data : memory, len);
		return 0;
	}
	/* The whole element has to be allowed, used or not. */
	mr = mr_find(qp, sge->lkey, sge->addr, sge->length,
		     to_memory ? IB_ACCESS_LOCAL_WRITE : 0);
	return mr ? mr_copy(mr, sge->addr + skip, data, len, to_memory) : -EFAULT;
}

/*
 * Copies from or to the memory of a work request, from @offset on. Returns 0;
 * -EMSGSIZE if it has less than @offset + @len bytes; or -EFAULT if a key does
 * not allow it.
 */
int hca_copy_local(struct hca_qp *qp, const struct ib_sge *sge, int num_sge,
		   u32 offset, void *data, u32 len, bool to_memory)
{
	int i;

	for (i = 0; i < num_sge && len; i++) {
		u32 part;

		if (offset >= sge[i].length) {
			offset -= sge[i].length;
			continue;
		}
		part = min(len, sge[i].length - offset);
		if (copy_sge(qp, &sge[i], offset, data, part, to_memory))
			return -EFAULT;
		data += part;
		len -= part;
		offset = 0;
	}
	return len ? -EMSGSIZE : 0;
}

/* Whether the peer may access this range by an R_Key. */
bool hca_remote_allowed(struct hca_qp *qp, u32 rkey, u64 address, u32 len,
			int access)
{
	return !(access & ~qp->attr.qp_access_flags) &&
	       mr_find(qp, rkey, address, len, access);
}

/* The same, and copies. */
int hca_copy_remote(struct hca_qp *qp, u32 rkey, u64 address, void *data,
		    u32 len, bool to_memory)
{
	int access = to_memory ? IB_ACCESS_REMOTE_WRITE : IB_ACCESS_REMOTE_READ;
	struct hca_mr *mr;

	if (access & ~qp->attr.qp_access_flags)
		return -EFAULT;
	mr = mr_find(qp, rkey, address, len, access);
	return mr ? mr_copy(mr, address, data, len, to_memory) : -EFAULT;
}

/* Where an atomic operation of the peer takes place; NULL: not allowed. */
u64 *hca_atomic_operand(struct hca_qp *qp, u32 rkey, u64 address)
{
	struct hca_mr *mr;
	u64 at, page;

	if (!(qp->attr.qp_access_flags & IB_ACCESS_REMOTE_ATOMIC))
		return NULL;
	mr = mr_find(qp, rkey, address, sizeof(u64), IB_ACCESS_REMOTE_ATOMIC);
	if (!mr)
		return NULL;
	if (mr->kind == HCA_MR_DMA)
		return (u64 *)(uintptr_t)address;
	at = address - mr->iova + mr->offset;
	page = at >> mr->page_shift;
	if (page >= mr->page_count)
		return NULL;
	return mr->pages[page] + (at & ((1u << mr->page_shift) - 1));
}

/* Executes IB_WR_REG_MR. */
int hca_fast_register(struct hca_qp *qp, struct hca_mr *mr, u32 key, int access)
{
	if (mr->kind != HCA_MR_FAST || mr->valid || mr->ib.pd != qp->ib.pd ||
	    key >> KEY_BITS != mr->key >> KEY_BITS)
		return -EINVAL;
	mr->key = key;
	mr->access = access;
	mr->iova = mr->ib.iova;
	mr->length = mr->ib.length;
	mr->offset = mr->iova & ((1u << mr->page_shift) - 1);
	mr->valid = true;
	return 0;
}

/* Executes IB_WR_LOCAL_INV, or the invalidation that a peer sent. */
int hca_invalidate(struct hca_qp *qp, u32 key)
{
	struct hca_mr *mr = xa_load(&qp_dev(qp)->mrs, key >> KEY_BITS);

	if (!mr || mr->kind != HCA_MR_FAST || !mr->valid || mr->key != key ||
	    mr->ib.pd != qp->ib.pd)
		return -EINVAL;
	mr->valid = false;
	return 0;
}

const struct ib_device_ops hca_mr_ops = {
	.alloc_mr = hca_alloc_mr,
	.dereg_mr = hca_dereg_mr,
	.get_dma_mr = hca_get_dma_mr,
	.map_mr_sg = hca_map_mr_sg,
	.reg_user_mr = hca_reg_user_mr,
};

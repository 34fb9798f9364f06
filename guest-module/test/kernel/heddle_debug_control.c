// SPDX-License-Identifier: GPL-2.0
/*
 * A module with defects, to show that a debug kernel reports them: a read
 * beyond an allocation (KASAN), a call that may sleep under a spin lock
 * (DEBUG_ATOMIC_SLEEP), memory that nobody frees (kmemleak), and locks that are
 * taken in both orders (lockdep). Loading it makes each mistake once.
 */
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

static DEFINE_MUTEX(first);
static DEFINE_MUTEX(second);
static DEFINE_SPINLOCK(lock);

static noinline void heddle_debug_control_overrun(void)
{
	size_t len = 100;
	u8 *bytes = kmalloc(len, GFP_KERNEL);

	OPTIMIZER_HIDE_VAR(len);
	if (bytes)
		READ_ONCE(bytes[len]);
	kfree(bytes);
}

static noinline void heddle_debug_control_leak(void)
{
	int i;

	/* More than one, as registers and stacks may hold the last. */
	for (i = 0; i < 8; i++)
		WRITE_ONCE(*(u8 *)kmalloc(200, GFP_KERNEL | __GFP_NOFAIL), 1);
}

static int __init heddle_debug_control_init(void)
{
	heddle_debug_control_overrun();
	spin_lock(&lock);
	might_sleep();
	spin_unlock(&lock);
	heddle_debug_control_leak();
	mutex_lock(&first);
	mutex_lock(&second);
	mutex_unlock(&second);
	mutex_unlock(&first);
	mutex_lock(&second);
	mutex_lock(&first);
	mutex_unlock(&first);
	mutex_unlock(&second);
	return 0;
}

static void __exit heddle_debug_control_exit(void)
{
}

module_init(heddle_debug_control_init);
module_exit(heddle_debug_control_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Defects on purpose, for tests of debug kernels");

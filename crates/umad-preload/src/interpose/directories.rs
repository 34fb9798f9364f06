//! Listing directories. An emulated directory is a list of names in memory; its `DIR` is the address of that list.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{DIR, dirent};

use super::{FAILED, emulate, emulated_path, resolve};
use crate::errno::Errno;
use crate::real::call_real;
use crate::sysfs::Entry;

/// Most emulated directories that are open at the same time. Tools open one or two.
const OPEN_MAX: usize = 1024;

/// A program's filter of names.
type Filter = unsafe extern "C-unwind" fn(*const dirent) -> c_int;

/// A program's order of names.
type Comparison = unsafe extern "C-unwind" fn(*mut *const dirent, *mut *const dirent) -> c_int;

/// An open directory.
struct Listing {
    names: Vec<String>,
    position: usize,
    /// What `readdir` returned last.
    entry: dirent,
}

/// The open directories by their address.
static OPEN: Mutex<BTreeMap<usize, Box<Listing>>> = Mutex::new(BTreeMap::new());

/// The number of open directories: calls for others need no lock while it is 0.
static OPEN_COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: a dirent is plain data; the raw pointers that the program gets to it are the program's concern.
unsafe impl Send for Listing {}

fn open_directories() -> MutexGuard<'static, BTreeMap<usize, Box<Listing>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_emulated(directory: *mut DIR) -> bool {
    OPEN_COUNT.load(Ordering::Acquire) > 0 && open_directories().contains_key(&directory.addr())
}

/// The names in an emulated directory, `.` and `..` first.
fn names(path: &str) -> Result<Vec<String>, Errno> {
    match resolve(path)?.0 {
        Entry::Directory(names) => {
            let own = [".".to_owned(), "..".to_owned()];
            Ok(own.into_iter().chain(names).collect())
        }
        _ => Err(Errno::NOT_A_DIRECTORY),
    }
}

/// Fills in an entry; a name that is too long is cut.
fn fill(entry: &mut dirent, number: usize, name: &str) {
    entry.d_ino = number as u64 + 1;
    entry.d_off = number as i64 + 1;
    entry.d_reclen = mem::size_of::<dirent>() as u16;
    entry.d_type = libc::DT_UNKNOWN;
    let length = name.len().min(entry.d_name.len() - 1);
    for (target, byte) in entry.d_name.iter_mut().zip(name.as_bytes()[..length].iter().chain(&[0])) {
        *target = *byte as c_char;
    }
}

fn empty_entry() -> dirent {
    // SAFETY: plain integers, for which zero is valid.
    unsafe { mem::zeroed() }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn opendir(path: *const c_char) -> *mut DIR {
    // SAFETY: the program passes a C string, or what the C library rejects.
    let Some(path) = (unsafe { emulated_path(path) }) else {
        return call_real!(opendir(path => *const c_char) -> *mut DIR, else ptr::null_mut());
    };
    emulate(ptr::null_mut(), || {
        let mut listing = Box::new(Listing { names: names(path)?, position: 0, entry: empty_entry() });
        let address: *mut Listing = &mut *listing;
        let mut open = open_directories();
        if open.len() >= OPEN_MAX {
            return Err(Errno::TOO_MANY_FILES);
        }
        open.insert(address.addr(), listing);
        OPEN_COUNT.store(open.len(), Ordering::Release);
        Ok(address.cast())
    })
}

/// Defines the variants of `readdir`, whose entries have the same layout on 64-bit platforms.
macro_rules! define_readdir {
    ($($name:ident)*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name(directory: *mut DIR) -> *mut dirent {
            if !is_emulated(directory) {
                return call_real!($name(directory => *mut DIR) -> *mut dirent, else ptr::null_mut());
            }
            emulate(ptr::null_mut(), || Ok(next_entry(directory)))
        }
    )* };
}
define_readdir!(readdir readdir64);

fn next_entry(directory: *mut DIR) -> *mut dirent {
    let mut open = open_directories();
    let Some(listing) = open.get_mut(&directory.addr()) else { return ptr::null_mut() };
    let Some(name) = listing.names.get(listing.position) else { return ptr::null_mut() };
    fill(&mut listing.entry, listing.position, name);
    listing.position += 1;
    &raw mut listing.entry
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn rewinddir(directory: *mut DIR) {
    if !is_emulated(directory) {
        return call_real!(rewinddir(directory => *mut DIR) -> (), else ());
    }
    if let Some(listing) = open_directories().get_mut(&directory.addr()) {
        listing.position = 0;
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn dirfd(directory: *mut DIR) -> c_int {
    if !is_emulated(directory) {
        return call_real!(dirfd(directory => *mut DIR) -> c_int, else FAILED);
    }
    // There is no descriptor, and the standard allows that.
    emulate(FAILED, || Err(Errno::INVALID))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn closedir(directory: *mut DIR) -> c_int {
    if !is_emulated(directory) {
        return call_real!(closedir(directory => *mut DIR) -> c_int, else FAILED);
    }
    emulate(FAILED, || {
        let mut open = open_directories();
        open.remove(&directory.addr());
        OPEN_COUNT.store(open.len(), Ordering::Release);
        Ok(0)
    })
}

/// Defines the variants of `scandir`.
macro_rules! define_scandir {
    ($($name:ident)*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            list: *mut *mut *mut dirent,
            filter: Option<Filter>,
            comparison: Option<Comparison>,
        ) -> c_int {
            // SAFETY: the program passes a C string, or what the C library rejects.
            match unsafe { emulated_path(path) } {
                // SAFETY: the program passes a place for the list, and functions with these signatures.
                Some(path) => emulate(FAILED, || unsafe { scan(path, list, filter, comparison) }),
                None => call_real!(
                    $name(
                        path => *const c_char,
                        list => *mut *mut *mut dirent,
                        filter => Option<Filter>,
                        comparison => Option<Comparison>
                    ) -> c_int,
                    else FAILED
                ),
            }
        }
    )* };
}
define_scandir!(scandir scandir64);

/// Lists an emulated directory in memory of `malloc`, which the program frees.
///
/// # Safety
///
/// `list` may be written, and the functions accept entries.
unsafe fn scan(
    path: &str,
    list: *mut *mut *mut dirent,
    filter: Option<Filter>,
    comparison: Option<Comparison>,
) -> Result<c_int, Errno> {
    let mut entries = Vec::new();
    for (number, name) in names(path)?.iter().enumerate() {
        let mut entry = Box::new(empty_entry());
        fill(&mut entry, number, name);
        // SAFETY: a function of the program for such entries.
        if filter.is_none_or(|filter| unsafe { filter(&*entry) } != 0) {
            entries.push(entry);
        }
    }
    if let Some(comparison) = comparison {
        entries.sort_by(|a, b| {
            let (mut a, mut b): (*const dirent, *const dirent) = (&**a, &**b);
            // SAFETY: a function of the program for pointers to such entries.
            unsafe { comparison(&mut a, &mut b) }.cmp(&0)
        });
    }
    let pointers: *mut *mut dirent = allocate(entries.len().max(1) * mem::size_of::<*mut dirent>())?.cast();
    for (index, entry) in entries.iter().enumerate() {
        let copy: *mut dirent = allocate(mem::size_of::<dirent>())?.cast();
        // SAFETY: memory for one entry was just allocated, and for one pointer per entry before.
        unsafe {
            ptr::copy_nonoverlapping(&**entry, copy, 1);
            pointers.add(index).write(copy);
        }
    }
    // SAFETY: the caller vouches for the place.
    unsafe { list.write(pointers) };
    Ok(entries.len() as c_int)
}

/// Memory that the program may free.
fn allocate(bytes: usize) -> Result<*mut c_void, Errno> {
    // SAFETY: no pointers; the result is checked.
    let memory = unsafe { libc::malloc(bytes) };
    if memory.is_null() { Err(Errno::NO_MEMORY) } else { Ok(memory) }
}

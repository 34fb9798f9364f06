//! The functions of the C library behind the interposed ones.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the next library that has it, found on its first use.
pub(crate) struct RealFunction {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl RealFunction {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address; null if no library has it.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a C string; RTLD_NEXT finds the definition after the one of this library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Release);
        found
    }
}

/// Calls the function of the C library with this name and signature. Without one, sets ENOSYS and returns the value after
/// `else`.
///
/// A thread that is cancelled in the function unwinds from there, so the caller must have nothing to drop.
macro_rules! call_real {
    ($name:ident($($argument:expr => $ty:ty),*) -> $result:ty, else $missing:expr) => {{
        static REAL: $crate::real::RealFunction = $crate::real::RealFunction::new(
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("names have no zero byte"),
            },
        );
        let address = REAL.address();
        if address.is_null() {
            $crate::sys::set_errno(libc::ENOSYS);
            $missing
        } else {
            // SAFETY: the C library defines the function with this signature.
            let function: unsafe extern "C-unwind" fn($($ty),*) -> $result = unsafe { std::mem::transmute(address) };
            // SAFETY: the program passed these arguments to this function.
            unsafe { function($($argument),*) }
        }
    }};
}

pub(crate) use call_real;

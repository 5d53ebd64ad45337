// Known call chains in Rust: generics, a trait, a function passed on, nested modules.
extern "C" {
    fn read(fd: i32, buffer: *mut u8, size: usize) -> isize;
    fn write(fd: i32, buffer: *const u8, size: usize) -> isize;
    fn _exit(status: i32) -> !;
}

// What the compiler cannot see through, on any compiler since 2021.
#[inline(always)]
fn opaque<T>(value: T) -> T {
    let seen = unsafe { std::ptr::read_volatile(&value) };
    std::mem::forget(value);
    seen
}

// Keeps the call before it from being the function's last thing, a jump.
#[inline(always)]
fn stay() {
    unsafe { std::arch::asm!("nop") };
}

fn say(text: &str) {
    unsafe { write(1, text.as_ptr(), text.len()) };
}

fn hear() {
    let mut byte = 0u8;
    while byte != b'\n' {
        if unsafe { read(0, &mut byte, 1) } != 1 {
            unsafe { _exit(0) };
        }
    }
}

mod store {
    pub mod shelf {
        use crate::{opaque, stay};

        pub trait Stock {
            fn stock(&self, pieces: usize);
        }

        pub struct Crate<T>(pub T);

        impl<T: Copy> Stock for Crate<T> {
            #[inline(never)]
            fn stock(&self, pieces: usize) {
                let goods = vec![self.0; pieces];
                std::mem::forget(opaque(goods));
            }
        }

        #[inline(never)]
        pub fn restock<S: Stock>(shelf: &S, pieces: usize) {
            shelf.stock(pieces);
            stay();
        }
    }
}

#[inline(never)]
fn with<F: Fn(usize)>(function: F) {
    function(opaque(4400));
    stay();
}

#[inline(never)]
fn boxed(size: usize) {
    let bytes = vec![1u8; size].into_boxed_slice();
    std::mem::forget(opaque(bytes));
}

fn main() {
    say("ready\n");
    hear();
    store::shelf::restock(&store::shelf::Crate(7u64), opaque(100));
    with(boxed);
    say("done\n");
    hear();
}

// Known call chains in Rust: generics, a trait, a closure, nested modules.
use std::hint::black_box;

extern "C" {
    fn read(fd: i32, buffer: *mut u8, size: usize) -> isize;
    fn write(fd: i32, buffer: *const u8, size: usize) -> isize;
    fn _exit(status: i32) -> !;
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
        use std::hint::black_box;

        pub trait Stock {
            fn stock(&self, pieces: usize);
        }

        pub struct Crate<T>(pub T);

        impl<T: Copy> Stock for Crate<T> {
            #[inline(never)]
            fn stock(&self, pieces: usize) {
                let goods = vec![self.0; pieces];
                std::mem::forget(black_box(goods));
            }
        }

        #[inline(never)]
        pub fn restock<S: Stock>(shelf: &S, pieces: usize) {
            shelf.stock(pieces);
            black_box(());
        }
    }
}

#[inline(never)]
fn with<F: Fn(usize)>(function: F) {
    function(black_box(44));
    black_box(());
}

#[inline(never)]
fn boxed(size: usize) {
    let bytes = vec![1u8; size].into_boxed_slice();
    std::mem::forget(black_box(bytes));
}

fn main() {
    say("ready\n");
    hear();
    store::shelf::restock(&store::shelf::Crate(7u64), black_box(100));
    with(
        #[inline(never)]
        |n| boxed(n * 100),
    );
    say("done\n");
    hear();
}

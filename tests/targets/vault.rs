// Rust with std only, and books kept by its global allocator: boxes, vectors that grow,
// strings, maps, over-aligned and zeroed memory, from several threads.
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};

struct Books;

static BLOCKS: AtomicI64 = AtomicI64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);

fn book(size: usize, sign: i64) {
    BLOCKS.fetch_add(sign, Relaxed);
    BYTES.fetch_add(sign * size as i64, Relaxed);
}

unsafe impl GlobalAlloc for Books {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        book(layout.size(), 1);
        System.alloc(layout)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        book(layout.size(), 1);
        System.alloc_zeroed(layout)
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        book(layout.size(), -1);
        System.dealloc(block, layout)
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        book(layout.size(), -1);
        book(size, 1);
        System.realloc(block, layout, size)
    }
}

#[global_allocator]
static ALLOCATOR: Books = Books;

#[repr(align(128))]
struct Aligned([u8; 256]);

#[derive(Default)]
struct Vault {
    texts: HashMap<u32, String>,
    boxes: Vec<Box<Aligned>>,
    zeroes: Vec<Vec<u64>>,
}

impl Vault {
    fn work(&mut self, turn: u32) {
        for n in 0..500u32 {
            self.texts.insert(n * 7 % 300, format!("{turn} {}", "x".repeat(n as usize % 90)));
            if n % 3 == 0 {
                self.boxes.push(Box::new(Aligned([n as u8; 256])));
            }
            if n % 5 == 0 {
                self.zeroes.push(vec![0; n as usize]);
            }
            if n % 11 == 0 {
                self.texts.remove(&(n / 2));
                self.boxes.truncate(self.boxes.len() / 2);
            }
        }
    }
}

fn main() {
    // Files of their own, for standard input and output have buffers that are made late.
    let mut input = unsafe { File::from_raw_fd(0) };
    let mut output = unsafe { File::from_raw_fd(1) };
    let begin = Arc::new(Barrier::new(4));
    let end = Arc::new(Barrier::new(4));
    for _ in 0..3 {
        let (begin, end) = (begin.clone(), end.clone());
        std::thread::spawn(move || {
            let mut vault = Vault::default();
            let mut turn = 0;
            loop {
                begin.wait();
                turn += 1;
                vault.work(turn);
                end.wait();
            }
        });
    }
    let mut byte = [0u8; 64];
    output.write_all(b"ready\n").unwrap();
    while input.read(&mut byte).unwrap() > 0 {
        let (blocks, bytes) = (BLOCKS.load(Relaxed), BYTES.load(Relaxed));
        begin.wait();
        end.wait();
        let mut line = [0u8; 128];
        let mut rest = &mut line[..];
        let (more, wider) = (BLOCKS.load(Relaxed) - blocks, BYTES.load(Relaxed) - bytes);
        writeln!(rest, "{{\"blocks\":{more},\"bytes\":{wider}}}").unwrap();
        let left = rest.len();
        output.write_all(&line[..128 - left]).unwrap();
    }
    std::process::exit(0);
}

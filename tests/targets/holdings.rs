// A static with a mutex around boxes. Ends with its input.
use std::io::Read;
use std::sync::Mutex;

static VAULT: Mutex<Vec<Box<[u8; 300]>>> = Mutex::new(Vec::new());

fn main() {
    // A buffer that grows leaves stale pointers behind.
    VAULT.lock().unwrap().reserve(400);
    for n in 0..400usize {
        VAULT.lock().unwrap().push(Box::new([n as u8; 300]));
    }
    println!("ready");
    let mut byte = [0u8; 1];
    while std::io::stdin().read(&mut byte).unwrap() > 0 {}
}

// Boxes that are forgotten, and reference counts that go in circles.
//
//   cycles SECONDS [SPEED]
//
// Says what it has leaked as specimens.c does.
use std::cell::RefCell;
use std::io::{Read, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

const STEPS_PER_S: u64 = 10;

struct Node {
    _payload: [u64; 6],
    other: RefCell<Option<Rc<Node>>>,
}

#[inline(never)]
fn leak_by_forgetting(step: u64) -> Option<Box<[u64; 30]>> {
    let block = Box::new([step; 30]);
    if step % 9 == 0 {
        std::mem::forget(block);
        return None;
    }
    Some(block)
}

#[inline(never)]
fn leak_by_cycle(step: u64) -> Option<Rc<Node>> {
    let node = Rc::new(Node { _payload: [step; 6], other: RefCell::new(None) });
    if step % 15 == 0 {
        *node.other.borrow_mut() = Some(node.clone());
        return None;
    }
    Some(node)
}

fn say(text: &str) {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).unwrap();
    out.flush().unwrap();
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let seconds: u64 = arguments[1].parse().unwrap();
    let speed: f64 = arguments.get(2).map_or(1.0, |word| word.parse().unwrap());
    let mut input = std::io::stdin();
    let mut letter = [0u8];
    say("ready\n");
    while letter[0] != b'\n' {
        input.read_exact(&mut letter).unwrap();
    }
    let start = Instant::now();
    let (mut boxes, mut nodes) = (Vec::new(), Vec::new());
    let (mut forgotten, mut cycles) = (0, 0);
    for step in 1..=seconds * STEPS_PER_S {
        let due = Duration::from_secs_f64(step as f64 / STEPS_PER_S as f64 / speed);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        if step % 3 == 0 {
            boxes.extend(leak_by_forgetting(step / 3));
            nodes.extend(leak_by_cycle(step / 3));
            forgotten += u64::from(step / 3 % 9 == 0);
            cycles += u64::from(step / 3 % 15 == 0);
        }
        if step % 20 == 0 {
            boxes.clear();
            nodes.clear();
        }
    }
    // An Rc's block: the two counts before the node.
    let node_bytes = std::mem::size_of::<Node>() as u64 + 16;
    say(&format!("leak_by_forgetting {forgotten} {} 2.7\n", forgotten * 240));
    say(&format!("leak_by_cycle {cycles} {} 4.5\n", cycles * node_bytes));
    say("done\n");
    let _ = input.read(&mut letter);
}

// Rust: traits, closures, panics that are caught, all without frame pointers.
use std::collections::BTreeMap;

trait Stock {
    fn fill(&self, depth: usize) -> Vec<String>;
}

struct Shelf(usize);

impl Stock for Shelf {
    #[inline(never)]
    fn fill(&self, depth: usize) -> Vec<String> {
        (0..self.0).map(|n| format!("item {n} at {depth} {}", "x".repeat(30))).collect()
    }
}

#[inline(never)]
fn descend(stock: &dyn Stock, depth: usize, all: &mut BTreeMap<usize, Vec<String>>) -> usize {
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        if depth % 7 == 3 {
            panic!("as expected");
        }
        stock.fill(depth)
    }));
    all.insert(depth, found.unwrap_or_default());
    if depth > 0 { descend(stock, depth - 1, all) + 1 } else { 0 }
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut all = BTreeMap::new();
    let shelf: Box<dyn Stock> = Box::new(Shelf(5));
    for turn in 0..50 {
        descend(shelf.as_ref(), turn % 40, &mut all);
    }
    assert!(all.len() > 10);
}

// Keeps blocks of known types, then waits. Argument: how many of each.
use std::collections::HashMap;
use std::io::{stdin, stdout, Write};
use std::rc::Rc;

pub struct Item {
    pub price: [u64; 5],
}

#[derive(Default)]
struct Shop {
    items: Vec<Item>,
    by_number: HashMap<u64, Item>,
    boxes: Vec<Box<Item>>,
    shared: Vec<Rc<Item>>,
}

#[inline(never)]
fn fill(shop: &mut Shop, count: u64) {
    for price in 0..count {
        shop.items.push(Item { price: [price; 5] });
        shop.by_number.insert(price, Item { price: [price; 5] });
        shop.boxes.push(Box::new(Item { price: [price; 5] }));
        shop.shared.push(Rc::new(Item { price: [price; 5] }));
    }
}

fn main() {
    let count = std::env::args().nth(1).unwrap().parse().unwrap();
    let mut shop = Shop::default();
    let mut line = String::new();
    println!("ready");
    stdin().read_line(&mut line).unwrap();
    fill(&mut shop, count);
    println!("done");
    stdout().flush().unwrap();
    stdin().read_line(&mut line).unwrap();
    let sum = shop.items[0].price[0] + shop.boxes[0].price[0] + shop.shared[0].price[0];
    if sum + shop.by_number[&0].price[0] == u64::MAX {
        println!("{sum}");
    }
}

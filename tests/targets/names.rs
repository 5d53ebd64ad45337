// One function for each kind of name the mangling schemes know; what it does is of no account.
use std::collections::{BTreeMap, HashMap};
use std::fmt::{Debug, Display};

trait Shape<'a, T: ?Sized> {
    type Unit: Debug;
    fn area(&self, unit: &'a T) -> Self::Unit;
}

struct Square<const SIDE: i32, const ROUND: bool, const MARK: char>;

impl<'a, const S: i32, const R: bool, const M: char> Shape<'a, str> for Square<S, R, M> {
    type Unit = (i32, char);
    #[inline(never)]
    fn area(&self, unit: &'a str) -> (i32, char) {
        (S + unit.len() as i32 + R as i32, M)
    }
}

mod größe {
    #[inline(never)]
    pub fn länge<T: AsRef<str>>(text: T) -> usize {
        text.as_ref().chars().count()
    }
    pub mod 数 {
        #[inline(never)]
        pub fn 数える(n: u64) -> u64 {
            std::hint::black_box(n)
        }
    }
}

#[inline(never)]
fn by_pointer<T: ?Sized>(value: usize, _what: std::marker::PhantomData<T>) -> usize {
    std::hint::black_box(value)
}

#[inline(never)]
fn shapes(all: &[Box<dyn for<'a> Shape<'a, str, Unit = (i32, char)> + Send>]) -> i32 {
    all.iter().map(|shape| shape.area("unit").0).sum()
}

#[inline(never)]
fn apply<F: Fn(&str, &[u8]) -> usize>(function: F) -> usize {
    function("text", b"bytes")
}

#[inline(never)]
fn shown<T: Display + ?Sized, const N: usize>(value: &T) -> [String; N] {
    std::array::from_fn(|index| format!("{index}{value}"))
}

extern "C" fn called_back(value: i32) -> i32 {
    value + 1
}

fn main() {
    use std::marker::PhantomData as Kind;
    let mut total = 0;
    total += by_pointer(1, Kind::<for<'a, 'b> fn(&'a str, &'b mut [u8]) -> &'a str>);
    total += by_pointer(2, Kind::<for<'a> unsafe extern "C" fn(*const &'a u8, *mut ())>);
    total += by_pointer(3, Kind::<extern "C" fn(i32) -> i32>);
    total += by_pointer(4, Kind::<dyn for<'a> Shape<'a, str, Unit = u8> + Send>);
    total += by_pointer(5, Kind::<dyn for<'a> Fn(&'a str) -> Box<dyn Debug + 'a>>);
    total += by_pointer(6, Kind::<([u8; 12], (i64,), [f64; 2])>.into_never());
    total += by_pointer(7, Kind::<Square<-7, true, '\''>>);
    total += by_pointer(8, Kind::<Square<9, false, 'ß'>>);
    total += by_pointer(9, Kind::<extern "system" fn(u128, i128, isize)>);
    total += größe::länge("wörter") + größe::数::数える(3) as usize;
    let boxes: Vec<Box<dyn for<'a> Shape<'a, str, Unit = (i32, char)> + Send>> =
        vec![Box::new(Square::<-7, true, '\''>), Box::new(Square::<9, false, 'ß'>)];
    total += shapes(&boxes) as usize;
    total += apply(|text, bytes| text.len() + bytes.len());
    total += apply(|text, _| (0..3).map(|n| [text].len() + n).filter(|n| n % 2 == 0).count());
    total += shown::<str, 3>("a").len() + shown::<dyn Display, 2>(&1.5).len();
    let mut tree: BTreeMap<String, HashMap<(u8, char), Vec<Option<Box<dyn Debug>>>>> = BTreeMap::new();
    tree.entry("x".into()).or_default().entry((1, 'c')).or_default().push(Some(Box::new(7)));
    let pointer: extern "C" fn(i32) -> i32 = std::hint::black_box(called_back);
    println!("{total} {tree:?} {}", pointer(1));
}

trait IntoNever<T: ?Sized> {
    fn into_never(self) -> std::marker::PhantomData<T>;
}

impl<T: ?Sized> IntoNever<T> for std::marker::PhantomData<T> {
    #[inline(never)]
    fn into_never(self) -> std::marker::PhantomData<T> {
        self
    }
}

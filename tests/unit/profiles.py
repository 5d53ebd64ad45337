"""Made-up profiles, and the official meaning of pprof's fields."""

import random
from dataclasses import replace
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tracelloc.model.frames import Frame
from tracelloc.model.process import Target
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.profile import MappedFile, Profile, Sample
from tracelloc.snapshots.snapshot import StackStat

APP = "/opt/shop/server"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libstore.so.3"
HOSTILE = [
    "</script><script>window.hacked=1</script>", "<img src=x onerror=window.hacked=1>",
    "\"';window.hacked=1;//", "]]></style><svg onload=window.hacked=1>", "a;b 12",
    "=cmd|'/C calc'!A1", "\x1b[31mred\x07\n%s{}$&", "\u202egnp.exe", "naïve::日本語<T>",
    "${window.hacked=1}`",
]  # fmt: skip


def frame(name: str, module: str = APP, line: int = 1, **more: Any) -> Frame:
    base = 0x400000 if module == APP else 0x7F0000000000
    address = base + 16 * (hash_of(name) % 0x1000) + line % 16 + 1
    return Frame(address, name, f"_Z{name}", 4, 64, module, address - base,
                 file=f"src/{name[:6]}.cpp", line=line, **more)  # fmt: skip


def hash_of(name: str) -> int:
    return sum(ord(c) * 31**n for n, c in enumerate(name)) % (1 << 31)


def sample(index: int, frames: list[Frame], figures: tuple[int, int, int, int, int]) -> Sample:
    return Sample(StackStat(index, *figures), NamedStack(frames, [False] * len(frames)))


def profile(samples: list[Sample], **more: Any) -> Profile:
    return Profile(
        target=Target(42, "server"),
        time_s=1_700_000_000.5,
        elapsed_ns=90_000_000_000,
        sample_bytes=None,
        samples=samples,
        files=[
            MappedFile(APP, 0x400000, 0x500000, 0, "ab" * 20),
            MappedFile(LIBRARY, 0x7F0000000000, 0x7F0000100000, 0x1000, None),
        ],
        notes=["lost 0 events, 12 unmatched frees"],
        series=[(0, 0), (1_000_000_000, 500), (90_000_000_000, 716)],
        facts={"live_bytes": 1},
        **more,
    )


def small() -> Profile:
    """Three stacks: inlined functions, hidden and collapsed frames, one that is unknown."""
    inlined = [frame("grow", line=7, inlined=True), frame("push", line=7, inlined=True)]
    outer = frame("handle", line=7)
    # One address: what is inlined shares it with the function it is in.
    chain = [Frame(outer.address, f.symbol, f.raw_symbol, None, None, APP, f.module_offset,
                   None, f.file, f.line, inlined=True) for f in inlined]  # fmt: skip
    main = frame("main")
    one = Sample(
        StackStat(1, 400, 2, 1000, 5, 60),
        NamedStack([*chain, outer, frame("noise"), main], [False, False, False, True, False]),
    )
    run = [frame("poll", LIBRARY, 3), frame("spin", LIBRARY, 4), main]
    two = Sample(
        StackStat(2, 300, 1, 300, 1, -5),
        NamedStack(run, [False, True, False], ["runtime", "runtime", None]),
    )
    unknown = Sample(StackStat(0, 16, 1, 16, 1, 0), NamedStack([], []))
    freed = sample(3, [frame("temporary"), main], (0, 0, 5000, 7, 0))
    return profile([one, two, unknown, freed])


def peaked() -> Profile:
    """The same, with a peak, temporary allocations and blocks that others freed."""
    found = small()
    more = {
        1: {"peak_bytes": 350, "peak_count": 2, "remote_bytes": 600, "remote_count": 3},
        2: {"peak_bytes": 300, "peak_count": 1},
        3: {"peak_bytes": 4000, "peak_count": 4, "temporary_bytes": 3000, "temporary_count": 6},
    }
    return replace(
        found,
        samples=[
            replace(one, stat=replace(one.stat, **more.get(one.stat.index, {})))
            for one in found.samples
        ],
    )


def large(stacks: int, depth: int = 40, seed: int = 1, names: int = 3000) -> Profile:
    """Many stacks of functions with long names, as a server has them."""
    rng = random.Random(seed)
    pool = [
        frame(f"shop::{rng.choice(['http', 'store', 'cache'])}::Handler<{n}>::call_{n}",
              rng.choice([APP, APP, LIBRARY]), n % 900 + 1)
        for n in range(names)
    ]  # fmt: skip
    samples = []
    trunk = [rng.choice(pool) for _ in range(depth)]
    for index in range(1, stacks + 1):
        # Each stack shares the callers of the one before, down to somewhere.
        shared = rng.randrange(2, depth - 1)
        trunk = trunk[:shared] + [rng.choice(pool) for _ in range(depth - shared)]
        size = rng.randrange(16, 100_000)
        count = rng.randrange(1, 50)
        figures = (size * count, count, size * count * 3, count * 3, rng.randrange(-999, 9999))
        samples.append(sample(index, trunk[::-1], figures))
    samples.sort(key=lambda s: -s.stat.live_bytes)
    return profile(samples)


def hostile() -> Profile:
    """Every name of which something tries to get out of its place."""
    samples = [
        sample(n, [frame(name), frame(name), frame("main")], (100 + n, 1, 100 + n, 1, 1))
        for n, name in enumerate(HOSTILE, 1)
    ]
    found = profile(samples)
    files = [MappedFile("/tmp/</script><b>", 0x400000, 0x500000, 0, None)]
    return Profile(
        **{
            **{name: getattr(found, name) for name in Profile.__slots__},
            "target": Target(7, "<script>window.hacked=1</script>"),
            "files": files,
            "notes": ["</script><script>window.hacked=1</script>"],
        }
    )


_FIELDS = {
    "ValueType": ["type i1", "unit i2"],
    "Label": ["key i1", "str i2", "num i3", "num_unit i4"],
    "Sample": ["location_id *u1", "value *i2", "label *Label3"],
    "Mapping": [
        "id u1", "memory_start u2", "memory_limit u3", "file_offset u4", "filename i5",
        "build_id i6", "has_functions b7", "has_filenames b8", "has_line_numbers b9",
        "has_inline_frames b10",
    ],
    "Line": ["function_id u1", "line i2"],
    "Location": ["id u1", "mapping_id u2", "address u3", "line *Line4", "is_folded b5"],
    "Function": ["id u1", "name i2", "system_name i3", "filename i4", "start_line i5"],
    "Profile": [
        "sample_type *ValueType1", "sample *Sample2", "mapping *Mapping3", "location *Location4",
        "function *Function5", "string_table *s6", "drop_frames i7", "keep_frames i8",
        "time_nanos i9", "duration_nanos i10", "period_type ValueType11", "period i12",
        "comment *i13", "default_sample_type i14",
    ],
}  # fmt: skip


def _message_classes() -> Any:
    """profile.proto, told to the protobuf library field by field."""
    file = descriptor_pb2.FileDescriptorProto(name="p.proto", package="p", syntax="proto3")
    kinds = {"i": 3, "u": 4, "b": 8, "s": 9}
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for entry in fields:
            field, kind = entry.split()
            repeated = kind.startswith("*")
            kind = kind.lstrip("*")
            word = kind.rstrip("0123456789")
            added = message.field.add(
                name=field, number=int(kind[len(word) :]), label=3 if repeated else 1
            )
            if word in kinds:
                added.type = kinds[word]
            else:
                added.type, added.type_name = 11, f".p.{word}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Profile"))


PprofProfile = _message_classes()

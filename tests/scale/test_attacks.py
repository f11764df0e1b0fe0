"""A store that was tampered with is refused, or gives the numbers that were computed."""

import json
import os
import shutil
import tracemalloc

import numpy as np
import pytest
from stores import TILE, chunks, examples, network

import widelimit as wl

pytest.importorskip("zarr")
from zarr.abc.store import Store
from zarr.storage import LocalStore, WrapperStore

from widelimit.engine import tiles
from widelimit.scale import KernelStore, StoreError

X = examples(30)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Two stores of two networks on the same examples, never touched."""
    folder = tmp_path_factory.mktemp("pristine")
    for name, w_std in (("one", 1.3), ("two", 0.7)):
        network(w_std).kernel_into(folder / name, X, tile=TILE)
    return folder


@pytest.fixture
def stores(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "k")
    return tmp_path / "k"


def refused_or_equal(folder, net, x, wanted):
    """Whether it is refused; whatever is read else is what was computed."""
    try:
        found = KernelStore(folder)
        both = np.asarray(found.nngp), np.asarray(found.ntk)
    except StoreError:
        refused = True
    else:
        refused = False
        for one, two in zip(both, wanted, strict=True):
            np.testing.assert_array_equal(one, two)
    try:
        again = net.kernel_into(folder, x)
        both = np.asarray(again.nngp), np.asarray(again.ntk)
    except StoreError:
        assert refused
    else:  # a tile that was missing is computed
        for one, two in zip(both, wanted, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-13)
    return refused


# --- tiles ----------------------------------------------------------------------------------------


def exchange(one, two):
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)


def swap(folder, rng, name):
    exchange(*rng.choice(chunks(folder / "one", name), 2, replace=False))


def swap_with_digests(folder, rng, name):
    """Also what was known of them."""
    places = [p.relative_to(folder / "one" / name) for p in chunks(folder / "one", name)]
    one, two = rng.choice(places, 2, replace=False)
    exchange(folder / "one" / name / one, folder / "one" / name / two)
    exchange(*(folder / "one" / "digests" / place / "0" for place in (one, two)))


def swap_kernels(folder, rng, name):
    one = rng.choice(chunks(folder / "one", "nngp"))
    exchange(one, folder / "one" / "ntk" / one.relative_to(folder / "one" / "nngp"))


def repeat(folder, rng, name):
    one, two = rng.choice(chunks(folder / "one", name), 2, replace=False)
    one.write_bytes(two.read_bytes())


def from_another(folder, rng, name):
    """A tile of another network's store, with its digests or without."""
    one = rng.choice(chunks(folder / "one", name)).relative_to(folder / "one" / name)
    parts = [f"{name}/{one}"] + [f"digests/{one}/0"] * int(rng.integers(2))
    for part in parts:
        shutil.copy(folder / "two" / part, folder / "one" / part)


def infinities(folder, rng, name):
    one = rng.choice(chunks(folder / "one", name))
    value = rng.choice([np.inf, -np.inf, np.nan])
    one.write_bytes(np.full((TILE, TILE), value).tobytes())


def flip(folder, rng, name):
    one = rng.choice(chunks(folder / "one", rng.choice([name, "digests"])))
    content = bytearray(one.read_bytes())
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    one.write_bytes(bytes(content))


def resize(folder, rng, name):
    """Cut off, or grown beyond what memory holds."""
    one = rng.choice(chunks(folder / "one", name))
    os.truncate(one, rng.choice([0, 7, 511, 513, 6_000_000_000]))


def lose_digest(folder, rng, name):
    rng.choice(chunks(folder / "one", "digests")).unlink()


def to_a_pipe(folder, rng, name):
    one = rng.choice(chunks(folder / "one", name))
    one.unlink()
    os.mkfifo(one)


TILES = [
    swap, swap_with_digests, swap_kernels, repeat, from_another, infinities, flip, resize,
    lose_digest, to_a_pipe,
]  # fmt: skip
MENDED = {lose_digest, to_a_pipe}  # computed anew by the same call


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", TILES)
def test_tiles_are_what_was_written_in_their_place(stores, fault, seed):
    rng = np.random.default_rng(seed)
    whole = KernelStore(stores / "one")
    wanted = np.asarray(whole.nngp), np.asarray(whole.ntk)
    fault(stores, rng, str(rng.choice(["nngp", "ntk"])))
    before = len(KernelStore(stores / "one").list_tiles())
    if fault in MENDED:
        assert before == len(whole.manifest.tiles) - 1
        network().kernel_into(stores / "one", X)
        assert not refused_or_equal(stores / "one", network(), X, wanted)
        return
    assert len(KernelStore(stores / "one").verify()) in (1, 2)
    assert refused_or_equal(stores / "one", network(), X, wanted)
    KernelStore(stores / "one", read_only=False).verify(remove=True)
    network().kernel_into(stores / "one", X)
    assert not refused_or_equal(stores / "one", network(), X, wanted)


# --- descriptions ---------------------------------------------------------------------------------


def edit(path, change):
    node = json.loads(path.read_text())
    change(node)
    path.write_text(json.dumps(node))


def manifest_of(node):
    return node["attributes"]["widelimit"]


ARRAYS = {
    "fill value": lambda node: node.update(fill_value=0.0),
    "byte order": lambda node: node["codecs"][0]["configuration"].update(endian="big"),
    "a codec": lambda node: node["codecs"].append({"name": "gzip", "configuration": {"level": 1}}),
    "a pickle": lambda node: node["codecs"].append({"name": "numcodecs.pickle"}),
    "dtype": lambda node: node.update(data_type="float32"),
    "objects": lambda node: node.update(data_type="|O"),
    "chunks": lambda node: node["chunk_grid"]["configuration"].update(chunk_shape=[4, 16]),
    "a smaller shape": lambda node: node.update(shape=[8, 8]),
    "no shape": lambda node: node.update(shape=[True, True]),
    "a transformer": lambda node: node.update(storage_transformers=[{"name": "x"}]),
    "an attribute": lambda node: node.update(attributes={"_ARRAY_DIMENSIONS": []}),
    "version 2": lambda node: node.update(zarr_format=2),
    "a group": lambda node: node.update(node_type="group"),
}


@pytest.mark.parametrize("name", ["nngp", "ntk", "digests"])
@pytest.mark.parametrize("change", ARRAYS)
def test_what_arrays_say_of_themselves_changes_nothing(stores, name, change):
    whole = KernelStore(stores / "one")
    wanted = np.asarray(whole.nngp), np.asarray(whole.ntk)
    edit(stores / "one" / name / "zarr.json", ARRAYS[change])
    assert not refused_or_equal(stores / "one", network(), X, wanted)


GROUPS = {
    "no digest": lambda node: manifest_of(node).pop("digest"),
    "digest None": lambda node: manifest_of(node).update(digest=None),
    "the name of the store": lambda node: manifest_of(node).update(store="0" * 32),
    "a network": lambda node: manifest_of(node)["facts"]["network"].update(layers=[]),
    "one kernel": lambda node: manifest_of(node)["facts"].update(names=["nngp"]),
    "cuts": lambda node: manifest_of(node)["rows"][0].update(cuts=[[7, None]]),
    "an order": lambda node: manifest_of(node)["rows"][0].update(members=list(range(8))[::-1]),
    "no manifest": lambda node: node["attributes"].clear(),
    "version 2": lambda node: node.update(zarr_format=2),
    "a list": lambda node: node.update(attributes=[]),
}


@pytest.mark.parametrize("change", GROUPS)
def test_the_manifest_is_as_it_was_written(stores, change):
    edit(stores / "one" / "zarr.json", GROUPS[change])
    with pytest.raises(StoreError, match=r"damaged manifest|without the manifest"):
        KernelStore(stores / "one")
    with pytest.raises(StoreError, match=r"damaged manifest|without the manifest"):
        network().kernel_into(stores / "one", X)


def test_another_stores_manifest_is_not_ones_own(stores):
    for name in ("zarr.json", "nngp/zarr.json", "ntk/zarr.json"):
        shutil.copy(stores / "two" / name, stores / "one" / name)
    with pytest.raises(StoreError, match="is damaged"):
        np.asarray(KernelStore(stores / "one").ntk)


def test_deep_and_large_descriptions(stores):
    for text in ("[" * 200_000, "{}", "null", "", "\xff"):
        (stores / "two" / "zarr.json").write_text(text, "latin-1")
        with pytest.raises(StoreError, match="damaged manifest"):
            KernelStore(stores / "two")
    os.truncate(stores / "two" / "zarr.json", 6_000_000_000)
    with pytest.raises(StoreError, match="damaged manifest"):
        KernelStore(stores / "two")


def test_orders_of_sequences_are_part_of_the_digest(tmp_path, monkeypatch):
    monkeypatch.setattr(tiles, "_COMPILATION", 1e-6)
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, 2)) for n in rng.integers(1, 24, size=20)]
    net = wl.Serial(wl.Dense(4), wl.MeanPool(), wl.Dense(1))
    net.kernel_into(tmp_path / "k", x, tile=TILE)

    def permute(node):
        members = manifest_of(node)["rows"][0]["members"]
        members[0], members[1] = members[1], members[0]

    edit(tmp_path / "k" / "zarr.json", permute)
    with pytest.raises(StoreError, match="digest does not hold"):
        net.kernel_into(tmp_path / "k", x)


def test_zarr_of_version_2_with_objects_is_never_opened(tmp_path):
    """Object arrays of version 2 name a codec that runs what it reads."""
    folder = tmp_path / "k"
    for name in ("", "nngp", "ntk"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / ".zgroup").write_text('{"zarr_format": 2}')
    array = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "|O", "order": "C"}
    array |= {"fill_value": None, "compressor": None, "filters": [{"id": "pickle"}]}
    (folder / "nngp" / ".zarray").write_text(json.dumps(array))
    code = f"cos\nsystem\n(S'touch {tmp_path / 'ran'}'\ntR."
    (folder / "nngp" / "0").write_text(code)
    with pytest.raises(StoreError, match="no store"):
        KernelStore(folder)
    with pytest.raises(StoreError, match="holds other things"):
        network().kernel_into(folder, X)
    assert not (tmp_path / "ran").exists()


# --- too much -------------------------------------------------------------------------------------


def test_a_file_is_read_to_no_more_than_its_tile(stores):
    os.truncate(chunks(stores / "one")[0], 6_000_000_000)
    tracemalloc.start()
    with pytest.raises(StoreError, match="is damaged"):
        np.asarray(KernelStore(stores / "one").nngp)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


# --- how much is read -----------------------------------------------------------------------------


class Counting(WrapperStore[Store]):
    """Bytes that were read."""

    count = 0

    async def get(self, *args, **kwargs):
        found = await super().get(*args, **kwargs)
        type(self).count += 0 if found is None else len(found)
        return found


def test_opening_reads_less_than_a_hundredth(tmp_path):
    x = examples(1200)
    network().kernel_into(tmp_path / "k", x, tile=64)
    size = sum(path.stat().st_size for path in (tmp_path / "k").rglob("*") if path.is_file())
    Counting.count = 0
    stored = network().kernel_into(Counting(LocalStore(tmp_path / "k")), x)
    assert 0 < Counting.count < size / 100
    before = Counting.count
    stored.nngp[:64, :64]
    tile = 64 * 64 * 8
    assert tile <= Counting.count - before < 1.01 * tile
    np.asarray(stored.ntk)
    assert Counting.count > 0.45 * size


# --- names ----------------------------------------------------------------------------------------


def test_symbolic_links_are_folders(stores, tmp_path):
    os.symlink(stores / "one", tmp_path / "link")
    np.testing.assert_array_equal(
        KernelStore(tmp_path / "link").ntk[:], KernelStore(stores / "one").ntk[:]
    )
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling")
    with pytest.raises(StoreError):
        network().kernel_into(tmp_path / "dangling", X, tile=TILE)
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    with pytest.raises(StoreError):
        network().kernel_into(tmp_path / "loop", X, tile=TILE)

"""The image loader: every kind of file gives the pixels it shows, or an error that names it."""

from __future__ import annotations

import io
import logging
import os
import struct
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile, features

from bcs_lab.corpus.images import (
    BACKGROUND,
    DEFAULT_MAX_IMAGE_PIXELS,
    check_image_file,
    file_sha256,
    inspect_image,
    load_image,
    to_rgb,
)
from bcs_lab.errors import ImageError

WHITE = (255, 255, 255)


def pixels(path: Path, **options: int) -> np.ndarray:
    image = load_image(path, **options)
    assert image.mode == "RGB"
    array = np.asarray(image)
    assert array.dtype == np.uint8
    assert array.ndim == 3
    assert array.shape[2] == 3
    return array


def noise(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def png(width: int, height: int, depth: int, colour: int, rows: bytes, extra: list[tuple[bytes, bytes]] | None = None):
    """A PNG written chunk by chunk, for bit depths Pillow does not write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = b"".join(chunk(kind, data) for kind, data in extra or [])
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


def scanlines(array: np.ndarray) -> bytes:
    return b"".join(b"\0" + line.tobytes() for line in array)


# --- transparency ----------------------------------------------------------------------------------------------------


def test_background_is_white() -> None:
    assert BACKGROUND == WHITE


def test_alpha_hides_the_colour_beneath(tmp_path: Path) -> None:
    rgba = np.zeros((4, 6, 4), np.uint8)
    rgba[:, :3] = (10, 20, 30, 255)
    rgba[:, 3:] = (255, 0, 255, 0)
    rgba[0, 0] = (100, 0, 200, 128)
    path = tmp_path / "hidden.png"
    Image.fromarray(rgba).save(path)
    out = pixels(path)
    assert (out[:, 3:] == WHITE).all()
    assert tuple(out[1, 1]) == (10, 20, 30)
    expected = np.array([100, 0, 200]) * 128 / 255 + 255 * 127 / 255
    assert np.abs(out[0, 0] - expected).max() <= 1


def test_palette_with_transparency_of_both_kinds(tmp_path: Path) -> None:
    indices = np.arange(16, dtype=np.uint8).reshape(4, 4) % 4
    palette = [255, 0, 255, 10, 20, 30, 0, 0, 0, 200, 100, 50]
    for name, transparency, hidden in (("bytes", bytes([0, 255, 255, 255]), 0), ("int", 2, 2)):
        image = Image.frombytes("P", (4, 4), indices.tobytes())
        image.putpalette(palette)
        path = tmp_path / f"{name}.png"
        image.save(path, transparency=transparency)
        out = pixels(path)
        assert (out[indices == hidden] == WHITE).all()
        assert (out[indices == 1] == (10, 20, 30)).all()
        assert (out[indices == 3] == (200, 100, 50)).all()


def test_grey_is_replicated_and_grey_alpha_composited(tmp_path: Path) -> None:
    grey = noise((5, 7))
    Image.fromarray(grey).save(tmp_path / "l.png")
    assert (pixels(tmp_path / "l.png") == grey[:, :, None]).all()
    alpha = np.full_like(grey, 255)
    alpha[3:] = 0
    image = Image.merge("LA", [Image.fromarray(grey), Image.fromarray(alpha)])
    image.save(tmp_path / "la.png")
    out = pixels(tmp_path / "la.png")
    assert (out[:3] == grey[:3, :, None]).all()
    assert (out[3:] == 255).all()


def test_modes_without_a_file_format() -> None:
    rgba = Image.new("RGBA", (2, 1), (200, 100, 50, 255))
    rgba.putpixel((1, 0), (255, 0, 255, 0))
    for image in (rgba, rgba.convert("RGBa"), rgba.convert("PA") if "PA" in Image.MODES else rgba):
        out = np.asarray(to_rgb(image))
        assert tuple(out[0, 1]) == WHITE
        assert np.abs(out[0, 0].astype(int) - (200, 100, 50)).max() <= 1
    la = Image.merge("LA", [Image.new("L", (1, 1), 9), Image.new("L", (1, 1), 0)])
    assert np.asarray(to_rgb(la.convert("La")))[0, 0].tolist() == [255, 255, 255]
    for mode in ("YCbCr", "HSV", "RGBX", "LAB"):
        out = np.asarray(to_rgb(Image.new(mode, (2, 2))))
        assert out.shape == (2, 2, 3), mode


@pytest.mark.parametrize(("depth", "key"), [(1, 1), (2, 2), (4, 5), (8, 77), (16, 4660)])
def test_grey_colour_key_at_every_bit_depth(tmp_path: Path, depth: int, key: int) -> None:
    other = 0 if depth == 1 else key - 1
    values = np.array([[key, other]])
    if depth == 16:
        rows = b"\0" + values.astype(">u2").tobytes()
    else:
        bits = "".join(f"{v:0{depth}b}" for v in values[0]).ljust(16, "0")
        rows = b"\0" + int(bits, 2).to_bytes(2, "big")[: max(1, depth * 2 // 8)]
    path = tmp_path / "key.png"
    path.write_bytes(png(2, 1, depth, 0, rows, [(b"tRNS", struct.pack(">H", key))]))
    out = pixels(path)
    assert tuple(out[0, 0]) == WHITE
    expected = other >> 8 if depth == 16 else other * 255 // ((1 << depth) - 1)
    assert tuple(out[0, 1]) == (expected,) * 3


def test_rgb_colour_key(tmp_path: Path) -> None:
    image = Image.new("RGB", (2, 1), (1, 2, 3))
    image.putpixel((1, 0), (1, 2, 4))
    image.save(tmp_path / "key.png", transparency=(1, 2, 3))
    assert pixels(tmp_path / "key.png").tolist() == [[[255, 255, 255], [1, 2, 4]]]


def test_bilevel(tmp_path: Path) -> None:
    bits = noise((5, 9)) > 127
    Image.fromarray(bits).save(tmp_path / "one.png")
    assert (pixels(tmp_path / "one.png") == np.where(bits, 255, 0)[:, :, None]).all()


# --- depth and colour ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_16_bit_grey_is_scaled_not_clipped(tmp_path: Path, suffix: str) -> None:
    small = noise((6, 8))
    path = tmp_path / f"deep.{suffix}"
    if suffix == "pgm":
        path.write_bytes(b"P5 8 6 65535\n" + (small.astype(">u2") * 257).tobytes())
    else:
        Image.fromarray(small.astype(np.uint16) * 257).save(path)
    assert (pixels(path) == small[:, :, None]).all()


def test_16_bit_big_endian_and_inverted_tiff(tmp_path: Path) -> None:
    small = noise((6, 8))
    image = Image.frombytes("I;16B", (8, 6), (small.astype(">u2") * 257).tobytes())
    image.save(tmp_path / "big.tif")
    assert (pixels(tmp_path / "big.tif") == small[:, :, None]).all()
    Image.fromarray(small.astype(np.uint16) * 257).save(tmp_path / "inverted.tif", tiffinfo={262: 0})
    with Image.open(tmp_path / "inverted.tif") as stored:
        white_is_zero = stored.tag_v2[262] == 0
    expected = 255 - small if white_is_zero else small
    assert (pixels(tmp_path / "inverted.tif") == expected[:, :, None]).all()


def test_32_bit_integers(tmp_path: Path) -> None:
    small = noise((6, 8))
    Image.fromarray(small.astype(np.int32) * 257).save(tmp_path / "int.tif")
    assert (pixels(tmp_path / "int.tif") == small[:, :, None]).all()
    Image.fromarray(small.astype(np.int32) * 70000).save(tmp_path / "large.tif")
    with pytest.raises(ImageError, match=r"large.tif: .*expected 0 to 65535"):
        load_image(tmp_path / "large.tif")


@pytest.mark.parametrize(("colour", "channels"), [(2, 3), (6, 4), (4, 2)])
def test_16_bit_colour_and_alpha_png(tmp_path: Path, colour: int, channels: int) -> None:
    small = noise((4, 5, channels))
    if channels in (2, 4):
        small[..., -1] = 255
        small[2:, :, -1] = 0
    path = tmp_path / "deep.png"
    path.write_bytes(png(5, 4, 16, colour, scanlines(small.astype(">u2") * 257)))
    out = pixels(path)
    shown = small if channels == 3 else small[..., :-1]
    if channels in (2, 4):
        assert (out[2:] == 255).all()
        assert (out[:2] == shown[:2]).all()
    else:
        assert (out == shown).all()


def test_floating_point_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "float.tif"
    Image.fromarray(np.full((3, 3), 0.5, np.float32)).save(path)
    with pytest.raises(ImageError, match=r"float\.tif: floating-point"):
        load_image(path)


def test_cmyk_without_profile(tmp_path: Path) -> None:
    for ink, rgb in (
        ((0, 0, 0, 0), (255, 255, 255)),
        ((0, 255, 255, 0), (255, 0, 0)),
        ((255, 0, 0, 0), (0, 255, 255)),
        ((0, 0, 0, 255), (0, 0, 0)),
        ((0, 0, 0, 128), (127, 127, 127)),
    ):
        Image.new("CMYK", (16, 16), ink).save(tmp_path / "ink.jpg", quality=95)
        assert np.abs(pixels(tmp_path / "ink.jpg").astype(int) - rgb).max() <= 3, ink
        Image.new("CMYK", (16, 16), ink).save(tmp_path / "ink.tif")
        assert np.abs(pixels(tmp_path / "ink.tif").astype(int) - rgb).max() <= 1, ink


def cmyk_profile() -> bytes:
    """A minimal ICC profile: any mixture is mid grey (L* 50) without black ink, black with it; colours are ignored."""
    grid = bytes([128, 128, 128, 0, 128, 128])
    identity = bytes(range(256))
    lut = b"mft1" + bytes(4) + bytes([4, 3, 2, 0])
    lut += b"".join(struct.pack(">i", v) for v in (65536, 0, 0, 0, 65536, 0, 0, 0, 65536))
    lut += identity * 4 + grid * 8 + identity * 3
    text = b"desc" + bytes(4) + struct.pack(">I", 5) + b"grey\0" + bytes(4 + 4 + 2 + 1 + 67)
    white = b"XYZ " + bytes(4) + struct.pack(">iii", 63190, 65536, 54061)
    tags = [(b"desc", text), (b"wtpt", white), (b"A2B0", lut)]
    offset = 128 + 4 + 12 * len(tags)
    table, body = struct.pack(">I", len(tags)), b""
    for name, data in tags:
        data += bytes(-len(data) % 4)
        table += name + struct.pack(">II", offset + len(body), len(data))
        body += data
    head = struct.pack(">I4sI4s4s4s", offset + len(body), b"\0\0\0\0", 0x02400000, b"prtr", b"CMYK", b"Lab ")
    head += struct.pack(">6H", 2020, 1, 1, 0, 0, 0) + b"acsp" + bytes(24) + struct.pack(">I", 0)
    head += struct.pack(">iii", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + table + body


def test_cmyk_with_profile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "profile.jpg"
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(path, icc_profile=cmyk_profile(), quality=95)
    with caplog.at_level(logging.WARNING):
        out = pixels(path)
    assert not caplog.records
    # L* = 50 is sRGB 119; the plain formula would give red.
    assert np.abs(out.astype(int) - 119).max() <= 3
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(path, icc_profile=b"broken", quality=95)
    with caplog.at_level(logging.WARNING):
        out = pixels(path)
    assert "ICC profile" in caplog.text
    assert np.abs(out.astype(int) - (255, 0, 0)).max() <= 3


# --- orientation -----------------------------------------------------------------------------------------------------


def upright(array: np.ndarray, orientation: int) -> np.ndarray:
    """What a viewer shows, from the EXIF standard's table."""
    if orientation >= 5:
        array = array.transpose(1, 0, 2)
    flips = {1: (), 2: (1,), 3: (0, 1), 4: (0,), 5: (), 6: (1,), 7: (0, 1), 8: (0,)}[orientation]
    return np.flip(array, flips) if flips else array


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "webp", "tif", "jpg"])
def test_exif_orientation(tmp_path: Path, suffix: str, orientation: int) -> None:
    blocks = noise((3, 2, 3), seed=3)
    stored = blocks.repeat(16, axis=0).repeat(16, axis=1)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{suffix}"
    options = {"webp": {"lossless": True}, "jpg": {"quality": 100, "subsampling": 0}}.get(suffix, {})
    Image.fromarray(stored).save(path, exif=exif, **options)
    out = pixels(path)
    expected = upright(stored, orientation)
    assert out.shape == expected.shape
    assert np.abs(out.astype(int) - expected).max() <= (10 if suffix == "jpg" else 0)


def test_orientation_of_grey_palette_and_16_bit(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    grey = noise((4, 6))
    for name, image in (
        ("l", Image.fromarray(grey)),
        ("deep", Image.fromarray(grey.astype(np.uint16) * 257)),
        ("la", Image.fromarray(grey).convert("LA")),
    ):
        image.save(tmp_path / f"{name}.png", exif=exif)
        assert (pixels(tmp_path / f"{name}.png")[..., 0] == np.rot90(grey, -1)).all(), name


def test_broken_exif_does_not_lose_the_image(tmp_path: Path) -> None:
    path = tmp_path / "exif.jpg"
    Image.new("RGB", (8, 8), (200, 10, 10)).save(path, exif=b"Exif\0\0MM\0*\xff\xff\xff\xffgarbage")
    assert np.abs(pixels(path).astype(int) - (200, 10, 10)).max() <= 3


# --- damaged files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> dict[str, Path]:
    photo = io.BytesIO()
    Image.fromarray(noise((96, 96, 3))).save(photo, "JPEG")
    rows = scanlines(noise((32, 32, 3)))
    whole = png(32, 32, 8, 2, rows)
    packed = zlib.compress(rows)
    broken = bytearray(packed)
    broken[len(broken) // 2 : len(broken) // 2 + 40] = b"\xff" * 40
    bad_idat = whole.replace(packed, bytes(broken))
    at = bad_idat.index(b"IDAT")
    data = bad_idat[at : at + 4 + len(broken)]
    bad_idat = bad_idat.replace(struct.pack(">I", zlib.crc32(b"IDAT" + packed)), struct.pack(">I", zlib.crc32(data)))
    files = {
        "truncated_half.jpg": photo.getvalue()[: len(photo.getvalue()) // 2],
        "truncated.png": whole[: len(whole) // 2],
        "bad_idat.png": bad_idat,
        "zero_bytes.png": b"",
        "html_saved_as.png": b"<!DOCTYPE html><html><body>404 Not Found</body></html>\n",
        "lfs.png": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        "text.jpg": b"just words",
        "eps.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n",
        "header_only.png": whole[:20],
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return {name: tmp_path / name for name in files}


def test_damaged_files_are_errors_with_path_and_reason(damaged: dict[str, Path]) -> None:
    for name, path in damaged.items():
        with pytest.raises(ImageError) as caught:
            load_image(path)
        assert str(path) in str(caught.value)
        assert len(str(caught.value)) > len(str(path)) + 10
        assert check_image_file(path, decode=True) == str(caught.value), name
    messages = {name: check_image_file(path, decode=True) or "" for name, path in damaged.items()}
    assert "empty (0 bytes)" in messages["zero_bytes.png"]
    assert "HTML" in messages["html_saved_as.png"]
    assert "git lfs pull" in messages["lfs.png"]
    assert "PostScript" in messages["eps.png"]
    assert "truncated" in messages["truncated_half.jpg"]


def test_truncated_files_stay_errors_when_another_library_allows_them(
    damaged: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    for name in ("truncated_half.jpg", "truncated.png", "bad_idat.png"):
        with pytest.raises(ImageError):
            load_image(damaged[name])
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def test_global_settings_are_left_alone(damaged: dict[str, Path]) -> None:
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    assert before[1] is False
    for path in damaged.values():
        check_image_file(path, decode=True)
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


def test_content_decides_not_the_suffix(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    Image.new("RGB", (16, 16), (10, 200, 30)).save(path, "JPEG")
    assert np.abs(pixels(path).astype(int) - (10, 200, 30)).max() <= 3
    assert inspect_image(path).format == "JPEG"
    strange = tmp_path / "no suffix # %20 & ünïcode"
    Image.new("RGB", (4, 4)).save(strange, "PNG")
    assert pixels(strange).shape == (4, 4, 3)


def test_what_is_no_file(tmp_path: Path) -> None:
    link = tmp_path / "dangling.png"
    link.symlink_to("gone.png")
    loop = tmp_path / "loop.png"
    loop.symlink_to("loop.png")
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    for path, reason in (
        (tmp_path / "missing.png", "no such file"),
        (tmp_path, "is a folder"),
        (link, "is a link to 'gone.png'"),
        (loop, "is a link to 'loop.png'"),
        (pipe, "not a regular file"),
        (tmp_path / ("x" * 300), "cannot be opened"),
        (Path("nul\0byte.png"), "cannot be opened"),
    ):
        with pytest.raises(ImageError, match=reason):
            load_image(path)
        with pytest.raises(ImageError, match=reason):
            file_sha256(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission_denied(tmp_path: Path) -> None:
    path = tmp_path / "locked.png"
    Image.new("RGB", (4, 4)).save(path)
    path.chmod(0)
    with pytest.raises(ImageError, match="permission denied"):
        load_image(path)


# --- size limit ------------------------------------------------------------------------------------------------------


def bomb(path: Path, side: int = 16000) -> Path:
    path.write_bytes(png(side, side, 1, 0, bytes((side // 8 + 1) * side)))
    return path


def test_bomb_is_refused_from_its_header(tmp_path: Path) -> None:
    path = bomb(tmp_path / "bomb.png")
    assert path.stat().st_size < 100_000
    with pytest.raises(ImageError) as caught:
        load_image(path)
    for part in (str(path), "256000000 pixels", str(DEFAULT_MAX_IMAGE_PIXELS), "corpus.max_image_pixels"):
        assert part in str(caught.value)
    assert check_image_file(path) is not None


def test_limit_can_be_lowered_and_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "small.png"
    Image.new("RGB", (100, 100)).save(path)
    with pytest.raises(ImageError, match=r"10000 pixels .* limit of 9999"):
        load_image(path, max_pixels=9999)
    # Above Pillow's own limit, whose error starts at twice the setting.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert load_image(path, max_pixels=10_000).size == (100, 100)
    assert Image.MAX_IMAGE_PIXELS == 100


def test_bomb_costs_no_memory(tmp_path: Path) -> None:
    code = """
        import resource, sys
        from bcs_lab.corpus.images import load_image
        from bcs_lab.errors import ImageError
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            load_image(sys.argv[1])
        except ImageError:
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    path = bomb(tmp_path / "bomb.png")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert int(done.stdout) < 100_000  # kB


# --- animations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tif"])
def test_first_frame_of_an_animation_with_a_warning(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    if suffix == "webp" and not features.check("webp"):
        pytest.skip("Pillow without WebP")
    frames = [Image.new("RGB", (24, 24), colour) for colour in ((200, 40, 40), (40, 200, 40), (40, 40, 200))]
    path = tmp_path / f"anim.{suffix}"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    with caplog.at_level(logging.WARNING):
        out = pixels(path)
    assert np.abs(out.reshape(-1, 3).mean(axis=0) - (200, 40, 40)).max() <= 3
    warnings = [r.getMessage() for r in caplog.records]
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    assert "3 frames" in warnings[0]
    assert inspect_image(path).frames == 3


def test_transparent_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGBA", (8, 8), (255, 0, 255, 0)) for _ in range(2)]
    frames[0].paste((10, 20, 30, 255), (0, 0, 4, 8))
    frames[0].save(tmp_path / "anim.png", save_all=True, append_images=frames[1:])
    out = pixels(tmp_path / "anim.png")
    assert (out[:, :4] == (10, 20, 30)).all()
    assert (out[:, 4:] == WHITE).all()


def test_still_images_do_not_warn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    image = Image.new("RGB", (8, 8), (1, 2, 3))
    image.save(tmp_path / "a.gif")
    image.save(tmp_path / "stereo.mpo", save_all=True, append_images=[image])
    with caplog.at_level(logging.WARNING):
        pixels(tmp_path / "a.gif")
        pixels(tmp_path / "stereo.mpo")
    assert not caplog.records


# --- identity --------------------------------------------------------------------------------------------------------


def test_file_digest(tmp_path: Path) -> None:
    import hashlib

    path = tmp_path / "x.png"
    Image.new("RGB", (4, 4)).save(path)
    assert file_sha256(path) == hashlib.sha256(path.read_bytes()).digest()


def test_result_is_plain_and_repeatable(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    Image.fromarray(noise((9, 7, 3))).save(path, dpi=(300, 300))
    first = load_image(path)
    assert type(first) is Image.Image
    assert first.info == {}
    assert (np.asarray(first) == np.asarray(load_image(path))).all()
    assert (np.asarray(to_rgb(first)) == np.asarray(first)).all()


def test_threads_decode_alike(damaged: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: check_image_file(damaged["truncated_half.jpg"], decode=True), range(40)))
    assert all(results)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True

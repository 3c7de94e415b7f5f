"""Counts and hashes of the published fold lists of PASCAL-5i and COCO-20i.

With this table, emat can tell whether a list is the published one without containing the lists. COCO's training lists
of folds 1 to 3 are not in the table.
"""

from dataclasses import dataclass

from emat.datasets.fold_lists import FoldList


@dataclass(frozen=True)
class PublishedList:
    """The numbers of entries and of different photos of a published list, and its `FoldList.sha256`."""

    entries: int
    photos: int
    sha256: str


PUBLISHED_LISTS: dict[tuple[str, str, int], PublishedList] = {  # by (data set, split, fold)
    ("pascal", "train", 0): PublishedList(
        2286, 2279, "e4371d08ed45d7b9337f6c3c22958e00aeb21df7c5e2e79a3e8fd11721f9ef0f"
    ),
    ("pascal", "train", 1): PublishedList(
        3425, 3309, "1b082b084aa12cd953bd664ee10d7872120ccbd30edaed73cda86091d6d361d3"
    ),
    ("pascal", "train", 2): PublishedList(
        5883, 5030, "971eda1d25492db844119685bb502e9e4c9bc430ef325cda7cc91a031e9507fa"
    ),
    ("pascal", "train", 3): PublishedList(
        2086, 1986, "f73cb2ea762688707a7a96670760be97787ed59a28ebd2ae4b361ef85814368e"
    ),
    ("pascal", "val", 0): PublishedList(346, 345, "809b5d1ca1971d1bcbdf38f25ea49bf3d9f47f927e3984de0b2410e3bb648f68"),
    ("pascal", "val", 1): PublishedList(451, 433, "adae6f36efd5c77926782220c9748a23278cbeff33bd2ba309c4e63241d29347"),
    ("pascal", "val", 2): PublishedList(725, 587, "2d4eaf79957389ed9785e75f2b848995780aafe4730a6a8bf75aef74e562217b"),
    ("pascal", "val", 3): PublishedList(346, 326, "aca370ad075b2d746934bb61878cf2f41f3212a6cedbafee4fc4d553a770bee4"),
    ("pascal", "0-5", 0): PublishedList(94, 94, "290564cb994e123f2de625b9fcd9e0c10cf085d720865b3a35624ada58cb85a1"),
    ("pascal", "0-5", 1): PublishedList(86, 86, "a292532cabf00c63517b2194e6a2f265077d38c55bd3f91a3e9838c7bfbf87a2"),
    ("pascal", "0-5", 2): PublishedList(129, 121, "5a8a0247408b60cb53059f0feff2d8f38c77e20159b581470420fddf99f08879"),
    ("pascal", "0-5", 3): PublishedList(67, 64, "110a38e37c9fafd15af138df25cde0393ca7d7cd4e29670bca06e0bef78f4ccc"),
    ("pascal", "5-10", 0): PublishedList(95, 95, "b83a8367892a780d86dc6c6afe3c5a01f4ead6ecf08691f4de879d65d4200404"),
    ("pascal", "5-10", 1): PublishedList(65, 65, "34f3a1a9e40bb588fcf590504c88183d68e3d77176486e2a41c09c3790b94701"),
    ("pascal", "5-10", 2): PublishedList(119, 116, "5ac80db0b68e59922adbdfd71cda40b1c19ee18c7a693399140de309c504e604"),
    ("pascal", "5-10", 3): PublishedList(61, 60, "d0a41fa778fcbb924323155a5c6c660bc79f7e290ded3fa0d9d226c74ebe5bce"),
    ("pascal", "10-15", 0): PublishedList(57, 57, "0fe1b9c8c7c63babce3644cf2cf166b4b292e3323665e7ae6d82f1348fb8a0f5"),
    ("pascal", "10-15", 1): PublishedList(40, 40, "63e48535e7f68de20c6146206f7e4eee74d44269fac120e8718afe265cb8bbd2"),
    ("pascal", "10-15", 2): PublishedList(112, 109, "b20a52a515d73e16700ccfd9b6e3471973fefa7a794da472ba23d1046f326f26"),
    ("pascal", "10-15", 3): PublishedList(36, 36, "cc83f6470ec5e5bcdc406d5283e51acf6cf3a71e85d234a9e2c90c3f847635a5"),
    ("pascal", "0-15", 0): PublishedList(246, 245, "5d0d785898c877d96a012cded9822e98a472455a40c8da4f43c45e4a6377c514"),
    ("pascal", "0-15", 1): PublishedList(191, 183, "8119a2eb8df482785736846253fde6b904e7d91e2fbf31559c6b5922bfe44b6d"),
    ("pascal", "0-15", 2): PublishedList(360, 312, "d3d85c52d1b66d3f0969ac74593701823e9577f2b1af0d8129f61dd066b9ee58"),
    ("pascal", "0-15", 3): PublishedList(164, 152, "26a3ce0c51d815e8d293045eafdfce81912e362a09851a52501edb4accf41db2"),
    ("coco", "train", 0): PublishedList(
        95476, 62040, "77b716362789b2b6f49d82732f078d107bf360c8bf1f0faf3c3605a29496e4c5"
    ),
    ("coco", "val", 0): PublishedList(35783, 26052, "8de588e3c3aee4af79960c0df42827da5321d6832bb101d99a58f6f2b3ad5272"),
    ("coco", "val", 1): PublishedList(17912, 15305, "84ca4128d87b9f57d1955d4ebcd808ed0ca5685c3bd08b6c2338293f842473f6"),
    ("coco", "val", 2): PublishedList(14563, 13138, "91a6815115bb186cb2e9dc85bf1338df88ec8c2bba8c9d5d7bafd5d233716ad5"),
    ("coco", "val", 3): PublishedList(14315, 12640, "0f1c0f3f7e1005bf4a2a318438a59e3b0a7dc7f14f147c8529869c880b5acbad"),
    ("coco", "0-5", 0): PublishedList(11871, 10517, "6d055fec8bb0393feb0e4a34256ae1de23915a0154543dd6171e4fc46079f810"),
    ("coco", "0-5", 1): PublishedList(7992, 7169, "088f58021f0f1632734879009392f786f01e9dd3e36cbf79283e26b6c85e8759"),
    ("coco", "0-5", 2): PublishedList(7677, 7160, "34924a90789358ec6e9aedd767c96e80803872997072eb86df605771ba4c142d"),
    ("coco", "0-5", 3): PublishedList(5974, 5483, "9d18755f5b56d82b7258c3169a5c292bfd0d85d42779ba478fc900d0f08d6680"),
    ("coco", "5-10", 0): PublishedList(6298, 5975, "082020630eb9c6def51e74903643367c2a90855dfe8ef9a9c423166f6f97c5d2"),
    ("coco", "5-10", 1): PublishedList(3239, 3153, "59a9685552c48efe199258484e768dace138a0e676fc414f59106ae92ab1cf4a"),
    ("coco", "5-10", 2): PublishedList(2336, 2289, "c6ca9af465dc7a7274c2614d73ba6ba9c573620a87d599c05919000aa23773cd"),
    ("coco", "5-10", 3): PublishedList(2336, 2299, "f3737277485f1f8fa3b5673944254d20162edda3a134e0ad3148a5770873595c"),
    ("coco", "10-15", 0): PublishedList(4132, 4012, "ae184f9e521ef4d5875c0667006e970b5c2839ea75e8d48d7bfbc848d274535b"),
    ("coco", "10-15", 1): PublishedList(1781, 1758, "a2a82ce6da2b8a0d9df3243ee845d22e36194daa4a1d5c5e5731b01be7168193"),
    ("coco", "10-15", 2): PublishedList(1295, 1286, "6ddf705c1fdadfea8999cae7c07086dc306c9170e0edd1ed384a9645b40254f4"),
    ("coco", "10-15", 3): PublishedList(1476, 1456, "a9943e0cad249a8ed39a4f6c4168db054fded2ae03087a94ddd41d8af873a12b"),
    ("coco", "0-15", 0): PublishedList(
        22301, 17876, "adc689eb9c90b3ea6f8cf12d1847f0b29cd15ddf3f396854345efc776d9ec9cf"
    ),
    ("coco", "0-15", 1): PublishedList(
        13012, 11243, "8db4ae99c4f46179a9ba2d1b7c52094fcf3e4569afc238c64c595c85f57f121e"
    ),
    ("coco", "0-15", 2): PublishedList(
        11308, 10242, "1b667f4d9c41901d673245fce531965435a487c44f1600c99343022dceeb07e8"
    ),
    ("coco", "0-15", 3): PublishedList(9786, 8836, "5bab1bf04bdce536f93415e35b2e928a579736a5a091281f69e4be365b923e8c"),
}


def published_list(fold_list: FoldList) -> PublishedList | None:
    """Return the published list of the same data set, split and fold; None if the table does not have it."""
    return PUBLISHED_LISTS.get((fold_list.dataset, fold_list.split, fold_list.fold))


def equals_published(fold_list: FoldList) -> bool | None:
    """Whether the list has the same entries as the published one; None if the table does not have that."""
    published = published_list(fold_list)
    return None if published is None else published.sha256 == fold_list.sha256

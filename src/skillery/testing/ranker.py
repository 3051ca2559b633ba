"""The contract of Rankers: subclass RankerContract and provide the fixture `ranker`, started and without skills."""

from __future__ import annotations

import asyncio

import pytest

from skillery.backends import Ranker
from skillery.testing.rules import Contract

TEXTS = {
    1: "pdf tools\nMerge, split and fill PDF documents.\npdf, documents",
    2: "csv profiler\nProfile the columns of a CSV table.\ncsv, tables",
    30: "rolling deploy\nRoll out a service to a Kubernetes cluster without downtime.\nkubernetes",
}
ODD = ["", " ", "\n\n", "x", "größer 😀 拆分文档", "\u2028\u200b", "word " * 5_000, "x" * 20_000]


class RankerContract(Contract):
    """The contract: the ranker finds the skills that it holds, and no others, nearest first."""

    @pytest.fixture
    def ranker(self) -> Ranker:
        raise NotImplementedError("provide the fixture `ranker`: a started ranker that holds no skills")

    async def hold_texts(self, ranker: Ranker) -> None:
        vectors = await ranker.vectors(list(TEXTS.values()))
        await ranker.hold(list(zip(TEXTS, vectors, strict=True)))

    def test_the_revision_names_the_form_of_the_vectors(self, ranker: Ranker) -> None:
        """`revision` is a text with 1 to 255 characters."""
        assert isinstance(ranker.revision, str)
        assert 1 <= len(ranker.revision) <= 255

    async def test_each_text_has_a_vector(self, ranker: Ranker) -> None:
        """`vectors` returns bytes for each text, in the same order, and the same bytes for the same text."""
        vectors = await ranker.vectors([*TEXTS.values(), *reversed(TEXTS.values())])

        assert all(isinstance(vector, bytes) and vector for vector in vectors)
        assert vectors == vectors[::-1]
        assert len(set(vectors)) == len(TEXTS)
        assert await ranker.vectors([]) == []

    async def test_odd_texts_have_vectors_and_are_queries(self, ranker: Ranker) -> None:
        """Empty, long and unusual texts raise no error."""
        await self.hold_texts(ranker)

        assert len(await ranker.vectors(ODD)) == len(ODD)
        for text in ODD:
            assert {skill_id for skill_id, _ in await ranker.nearest(text, 10)} <= TEXTS.keys()

    async def test_the_nearest_skill_is_first(self, ranker: Ranker) -> None:
        """`nearest` returns pairs of skill id and similarity, the highest similarity first."""
        await self.hold_texts(ranker)

        for skill_id, text in TEXTS.items():
            rows = await ranker.nearest(text, 10)
            assert rows[0][0] == skill_id
            similarities = [similarity for _, similarity in rows]
            assert similarities == sorted(similarities, reverse=True)
            assert len({each for each, _ in rows}) == len(rows)

    async def test_at_most_the_wanted_number_is_returned(self, ranker: Ranker) -> None:
        """`nearest` returns at most `most` skills. Without skills, it returns none."""
        assert await ranker.nearest(TEXTS[1], 10) == []
        await self.hold_texts(ranker)

        everything = await ranker.nearest(TEXTS[1], 10)
        assert await ranker.nearest(TEXTS[1], 1) == everything[:1]

    async def test_a_new_vector_replaces_the_old_one(self, ranker: Ranker) -> None:
        """`hold` replaces the vector of a skill, and keeps those of all others."""
        await self.hold_texts(ranker)
        await ranker.hold([])
        [new] = await ranker.vectors(["sonnets\nWrite rhyming sonnets about the sea."])
        await ranker.hold([(1, new)])

        assert (await ranker.nearest("Write rhyming sonnets about the sea.", 1))[0][0] == 1
        assert (await ranker.nearest(TEXTS[2], 1))[0][0] == 2

    async def test_a_skill_without_a_vector_is_forgotten(self, ranker: Ranker) -> None:
        """`hold` with None forgets a skill, also one that the ranker does not hold."""
        await self.hold_texts(ranker)
        await ranker.hold([(1, None), (4, None)])

        assert {skill_id for skill_id, _ in await ranker.nearest(TEXTS[1], 10)} <= {2, 30}

    async def test_several_callers_ask_at_once(self, ranker: Ranker) -> None:
        """Several searches may call `nearest` while vectors are computed and held."""
        await self.hold_texts(ranker)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.hold_texts(ranker))
            vectors = group.create_task(ranker.vectors(list(TEXTS.values())))
            searches = [group.create_task(ranker.nearest(text, 1)) for text in [*TEXTS.values()] * 5]

        assert len(vectors.result()) == len(TEXTS)
        assert [search.result()[0][0] for search in searches] == [*TEXTS] * 5

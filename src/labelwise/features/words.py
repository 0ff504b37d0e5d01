"""What happens to words before they are counted: stop words are dropped, forms replaced by lemmas and stems.

Every distinct word is analysed once, in Python; texts are rewritten by kernels (`rewriting`). Word lists are kept with
the model, so that it does not depend on files or on the lists of this version; stemmers and lemmatizers are code, which
a model only names. Their version is recorded, and loading a model with another version checks that it gives the same
words for a sample of those of the training texts.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np

from labelwise.data.stream import text_lines
from labelwise.errors import ConfigError, DataError, ModelFormatError, did_you_mean
from labelwise.features.settings import TfidfConfig, snowball, stemmer_version
from labelwise.io.folder import strings_from_tensors, strings_to_tensors
from labelwise.kernels.rewriting import write_replacements
from labelwise.kernels.term_table import TermTable
from labelwise.kernels.words import NEEDS_PYTHON
from labelwise.strings import Strings

# --- stop words ---
# Function words of some languages: articles, pronouns, prepositions, conjunctions, auxiliary verbs and the like.
#
# Short lists of our own, in lower case; words that also carry a subject ("may", "will", "mine") are left out. Words of
# one letter never count, and contractions are split at the apostrophe ("qu" of "qu'il" is therefore listed).

# codespell:ignore-begin
STOP_WORDS: dict[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "danish": """
            ad af alle alt anden at blev blive bliver da de dem den denne der deres det dette dig din disse dog du
            efter eller en end er et for fra få får ham han hans har havde have hende hendes her hos hun hvad hvem
            hver hvilken hvis hvor hvordan hvorfor hvornår ikke ind jeg jer jeres jo kan kun kunne man mange med meget
            men mens mig min mod må ned nogen noget nogle nu når og også om op os over på sammen samt sig sin skal
            skulle som så sådan til ud under var ved vi vil ville vor være været
            """,
        "dutch": """
            aan aangezien al alle als andere beide bij daar dan dat de den der des deze die dit doch door dus een eens
            elk elke en er ge geen haar had hadden heb hebben hebt heeft hem hen het hier hij hoe hun ieder iedere
            iets ik in indien is ja je jij jou jouw jullie kan kon konden kunnen maar mag me meer men met mij mijn
            moet moeten mogen na naar niet niets nog nu of om omdat onder ons onze ook op over reeds sinds te tegen
            ten ter toch toen tot tussen uit uw van vanaf veel via voor waar waren was wat we wel welke werd werden
            wie wij worden wordt zal ze zelf zich zij zijn zo zoals zonder zou zouden zullen
            """,
        "english": """
            about above after again against all also although am among an and any are as at be because been before
            being below between both but by can cannot could did do does doing don down during each either else ever
            every few for from further had has have having he hence her here hers herself him himself his how however
            if in into is isn it its itself just ll me more most much my myself neither no nor not of off on once only
            onto or other our ours ourselves out over own per rather re same shall she should since so some such than
            that the their theirs them themselves then there thereby therefore these they this those though through
            thus to too toward towards under until unto up upon us ve very via was we were what whatever when whenever
            where whereas whereby wherein whether which while who whom whose why with within without would yet you
            your yours yourself
            """,
        "finnish": """
            aina asti edes ehkä ei eikä eivät eli en enemmän ennen ensin ette ettei että he heidän heidät heille
            heillä heiltä heissä heistä heitä hän häneen hänelle hänellä häneltä hänen hänessä hänestä hänet häntä
            ilman itse itsensä ja jo johon joiden joihin joiksi joilla joille joilta joissa joista joita joka jokainen
            jokin joko jolla jolle jolloin jolta jona jonka jos joskus jossa josta jota joten jotka jotta juuri kai
            kaikkea kaikki kaikkien kanssa kautta keiden keitä keneen kenelle kenen kenestä ketkä ketä koska koskaan
            kuin kuinka kuitenkaan kuitenkin kuka kun kunnes kyllä lisäksi luona lähes läpi me meidän meidät meille
            meillä meiltä meissä meistä meitä mihin miksi mikä mikäli mille milloin millä miltä minkä minne minua
            minulla minulle minulta minun minut minä missä mistä miten mitkä mitä mm mukaan mutta muu muun muut myös
            myöskin ne niiden niihin niille niillä niiltä niin niissä niistä niitä noiden noin noissa noita nuo nyt
            näiden näihin näille näissä näistä näitä nämä ole olemme olen olet olette oleva olevat oli olimme olin
            olisi olisivat olit olitte olivat olla ollaan olleet ollut on onko ovat pitkin poikki päin saakka sama
            samoin se sekä sellainen sen siellä sieltä siihen siinä siis siitä sille silloin sillä siltä sinne sinua
            sinulla sinulle sinun sinut sinä sitten sitä suhteen taas tahi tai takia te teidän teidät teille teillä
            teissä teistä teitä tuo tuohon tuolla tuon tuossa tuosta tuota tähän tälle tällä tällöin tämä tämän tässä
            tästä tätä täällä vaan vai vaikka varten vasta vastaan voi voida voidaan voisi voivat vähemmän välillä yhä
            yli
            """,
        "french": """
            afin ai ainsi alors après as au aucun aucune auquel aura auraient aurait aussi autre autres aux auxquelles
            auxquels avaient avait avant avec avez avoir avons ayant car ce ceci cela celle celles celui cependant ces
            cet cette ceux chaque chez ci comme comment contre dans de depuis des desquelles desquels donc dont du
            duquel elle elles en encore entre envers es est et eu eux fait furent fut hors ici il ils je jusqu jusque
            la laquelle le lequel les lesquelles lesquels leur leurs lors lorsqu lorsque lui là ma mais malgré me mes
            moi moins mon même mêmes ne ni non nos notre nous on ont or ou où par parce pas pendant peu peut peuvent
            plus pour pourquoi puis puisque qu quand que quel quelle quelles quelque quelques quels qui quoi quoique
            sa sans se selon sera seraient serait seront ses si sien soi soient soit sommes son sont sous suis sur ta
            tandis te tel telle telles tels tes toi ton tous tout toute toutes très tu un une vers via vos votre vous
            étaient étais était étant été être
            """,
        "german": """
            ab aber alle allem allen aller alles als also am an ander andere anderem anderen anderer anderes auch auf
            aus außer bei beim bereits bin bis bist bzw da dabei dadurch dafür dagegen daher damit danach daneben dann
            daran darauf daraus darf darin darum darüber das dass davon dazu dein deine deinem deinen deiner dem den
            denen denn der deren derer des dessen desto die dies diese dieselbe diesem diesen dieser dieses doch dort
            du durch dürfen ebenso eigene ein eine einem einen einer eines einige einigen einiger einmal er es etwa
            etwas euch euer eure falls für gegen gegenüber haben hat hatte hatten hinter hinzu hätte hätten ich ihm
            ihn ihnen ihr ihre ihrem ihren ihrer ihres im immer in indem infolge innerhalb ins ist ja je jede jedem
            jeden jeder jedes jedoch jene jenem jenen jener jenes kann kein keine keinem keinen keiner können könnte
            könnten man manche mehr mein meine meinem meinen meiner mich mir mit mittels muss musste müssen nach
            nachdem neben nicht nichts noch nun nur ob obgleich obwohl oder ohne per pro schon sehr sein seine seinem
            seinen seiner seines seit selbst sich sie sind so sobald sofern solche solchem solchen solcher soll sollen
            sollte sollten somit sondern sonst soweit sowie sowohl statt trotz um und uns unser unsere unserem unseren
            unserer unter usw viel viele vielen vom von vor war waren warum was weder wegen weil weiter welche welchem
            welchen welcher welches wem wen wenn wer werde werden wie wieder will wir wird wo wobei wodurch wohl
            wollen worden wozu wurde wurden während wäre wären würde würden zu zum zur zwar zwischen über
            """,
        "italian": """
            abbia abbiamo abbiano ad affinché agli ai al alcun alcuna alcune alcuni all alla alle allo altra altre
            altri altro anche ancora avendo aver avere aveva avevano avuto che chi ci ciascun ciascuna ciò coi col
            come con contro cui da dagli dai dal dall dalla dalle dallo degli dei del dell della delle dello dentro
            deve di dopo dove dunque durante ed egli ella entrambi era erano eravamo essa esse essendo esser essere
            essi esso fino fra fu furono già gli hai hanno ho il in infatti invece io la le lei li lo loro lui ma me
            mediante meno mentre mi mia mie miei mio molti molto ne negli nei nel nell nella nelle nello neppure
            nessun nessuna noi non nostra nostre nostri nostro né od ogni oltre oppure ora per perché però più poi
            poiché possono presso prima pur può qual quale quali quando quanto quasi quel quella quelle quelli quello
            questa queste questi questo qui quindi se sebbene secondo sei senza si sia siamo siano siete solo sono
            sopra sotto sta su sua sue sugli sui sul sull sulla sulle sullo suo suoi tale tali tanto te ti tra tramite
            tu tua tue tuo tuoi tutta tutte tutti tutto un una uno verso vi voi vostra vostre vostri vostro
            """,
        "norwegian": """
            alle alt andre at av bare ble bli blir både da de dem den denne der deres det dette din disse du eller en
            enn er et etter for fordi fra få får før gjennom ha hadde han hans har henne hennes her hos hun hva hvem
            hver hverandre hvilke hvilken hvis hvor hvordan hvorfor ikke ingen inn jeg jo kan kun kunne man mange med
            meg meget mellom men mens mer min mine mot må ned noe noen nå når og også om opp oss over på samme samt
            seg selv sin sine sitt skal skulle slik som så til under ut uten var ved vi vil ville vår være vært
            """,
        "portuguese": """
            ainda algum alguma algumas alguns alguém além ante antes ao aos apenas apesar após aquela aquelas aquele
            aqueles aqui aquilo as assim através até cada com como conforme contra cuja cujas cujo cujos da daquela
            daquele das de dela delas dele deles depois desde dessa dessas desse desses desta destas deste destes deve
            devem do dos durante ela elas ele eles em embora enquanto entanto entre então era eram essa essas esse
            esses esta estas estava estavam este estes está estão eu foi for foram fosse há isso isto já la lhe lhes
            lo logo mais mas me mediante meio mesma mesmas mesmo mesmos meu meus mim minha minhas muita muitas muito
            muitos na nas nela nele nem nenhum nenhuma nessa nesse nesta neste no nos nossa nossas nosso nossos num
            numa não nós onde os ou outra outras outro outros para pela pelas pelo pelos perante pode podem pois por
            porque portanto porém pouco quais qual qualquer quando quanto que quem quer se segundo seja sejam sem
            sempre sendo ser será serão seu seus si sido sob sobre sua suas são só tais tal também tanto te tem tendo
            ter teu tinha tinham toda todas todo todos tu tua tudo tão têm um uma umas uns você vocês vos vossa vosso
            """,
        "spanish": """
            ahora al algo alguna algunas alguno algunos algún allí ambos ante antes aquel aquella aquellas aquellos
            aquí así aun aunque aún bajo cada como con conforme contra cual cuales cualquier cuando cuanto cuya cuyas
            cuyo cuyos cómo de debe deben del desde después dicha dicho donde durante el ella ellas ellos en entonces
            entre era eran es esa esas ese eso esos esta estaba estaban estar estas este esto estos está están fue
            fuera fueron ha haber había habían han hasta hay he incluso la las le les lo los luego mas me mediante
            menos mi mientras mis misma mismas mismo mismos mucha muchas mucho muchos muy más ni ninguna ninguno
            ningún no nos nosotros nuestra nuestras nuestro nuestros nunca otra otras otro otros para pero poco por
            porque pueda puede pueden pues que quien quienes quién qué se sea sean según ser será serán si sido
            siempre siendo sin sino sobre solo son su sus suya suyo sí sólo tal tales también tampoco tan tanto te
            tenía tiene tienen toda todas todavía todo todos tras tu tus tú un una unas uno unos usted ustedes varias
            varios vosotros ya yo él
            """,
        "swedish": """
            all alla allt andra att av bara bland blev bli blir blivit både de dem den denna deras dess dessa det
            detta dig din dina ditt dock du där därför då efter eftersom eller en enligt er era ert ett från för före
            genom ha hade han hans har henne hennes hon honom hos hur här icke in inga ingen inget innan inom inte jag
            ju kan kunde kunna man med medan mellan men mer mera mig min mina mitt mot mycket måste ned ni nu när
            någon något några och också om oss på samma samt sedan sig sin sina sitt ska skall skulle som så sådan
            sådana till trots under upp ur ut utan utom vad var vara varför varit varje vars vart vem vi vid vilka
            vilken vilket vill ville vår våra vårt än är även över
            """,
    }.items()
}
# codespell:ignore-end


log = logging.getLogger(__name__)

GROUP = "labelwise.analyzers"
CHECKED_WORDS = 2000
"""Words whose analysis is compared when a model is loaded with another version of a stemmer or lemmatizer."""
_WORD = re.compile(r"\w\w+")

Analyzer = Callable[[list[str]], list[str]]

PYTHON_BATCH = 64
"""Texts that Python lower-cases at a time."""


class WordAnalysis:
    """Maps a word to the word that is counted, or to '' to drop it.

    `readable` maps counted words to the form that is most frequent in the training texts, where that differs; of hashed
    words to a form, for some of them.
    """

    def __init__(self, config: TfidfConfig, stop_words: frozenset[str], lemmas: Mapping[str, str]) -> None:
        self.config, self.stop_words, self.lemmas = config, stop_words, lemmas
        self.versions: dict[str, str] = {}
        self.steps: list[tuple[str, Analyzer]] = []
        if config.lemmatizer is not None:
            lemmatize, self.versions["lemmatizer"] = registered_analyzer(config.lemmatizer)
            self.steps.append((f"the lemmatizer '{config.lemmatizer}'", lemmatize))
        if config.stemmer is not None:
            self.steps.append((f"the stemmer '{config.stemmer}'", snowball(config.stemmer)))
            self.versions["stemmer"] = stemmer_version()
        self.readable: dict[str, str] = {}

    @classmethod
    def of(cls, config: TfidfConfig) -> WordAnalysis | None:
        """As a config asks for; None if words are counted as they are."""
        if not config.changes_words:
            return None
        lemmas = {} if config.lemmas is None else _read_lemmas(Path(config.lemmas), config.lowercase)
        return cls(config, _stop_words(config), lemmas)

    def analysed(self, words: list[str]) -> list[str]:
        """What each word is counted as; '' for words that are not counted. Not thread-safe."""
        results = ["" if word in self.stop_words else self.lemmas.get(word, word) for word in words]
        for name, step in self.steps:
            split = [word.split() for word in results]  # a lemma may be several words
            given = [word for parts in split for word in parts]
            found = iter(_checked(step(given), len(given), name))
            results = [" ".join(next(found) for _ in parts) for parts in split]
            if self.config.lowercase:
                results = [word.lower() for word in results]
        # the tokens of a text have two or more characters, so a shorter stem could not be counted
        return [word if len(result) == 1 else result for word, result in zip(words, results, strict=True)]

    def choose_readable(self, occurrences: Mapping[str, tuple[str, int]], counted: Iterable[str]) -> None:
        """Set `readable` from how often each form occurs (form -> counted word, occurrences)."""
        best: dict[str, tuple[int, str]] = dict.fromkeys(counted, (0, ""))
        for form, (word, times) in occurrences.items():
            if word in best:
                best[word] = min(best[word], (-times, form))
        self.readable = {word: form for word, (_, form) in sorted(best.items()) if form and form != word}

    def readable_term(self, term: str) -> str:
        """A term in readable words."""
        return " ".join(self.readable.get(word, word) for word in term.split(" "))

    def state(self) -> dict[str, np.ndarray]:
        """Word lists, versions and readable words as arrays for a model folder."""
        lists = {
            "stop_words": sorted(self.stop_words),
            "lemma_forms": self.lemmas.keys(),
            "lemmas": self.lemmas.values(),
            "stems": self.readable.keys(),
            "stem_forms": self.readable.values(),
            "analysis": [json.dumps(self.versions)],
        }
        tensors: dict[str, np.ndarray] = {}
        for name, words in lists.items():
            tensors |= strings_to_tensors(name, Strings.of(words))
        return tensors

    @classmethod
    def restored(cls, config: TfidfConfig, tensors: Mapping[str, np.ndarray], path: Path) -> WordAnalysis | None:
        """Restore what `state` returned; None if the config does not ask for an analysis."""
        if not config.changes_words:
            return None
        stop_words, forms, lemmas, stems, stem_forms, versions = (
            list(strings_from_tensors(name, tensors, path))
            for name in ("stop_words", "lemma_forms", "lemmas", "stems", "stem_forms", "analysis")
        )
        if len(forms) != len(lemmas) or len(stems) != len(stem_forms):
            raise ModelFormatError(f"{path}: the word lists of the text analysis are damaged")
        analysis = cls(config, frozenset(stop_words), dict(zip(forms, lemmas, strict=True)))
        analysis.readable = dict(zip(stems, stem_forms, strict=True))
        analysis._check_versions(versions, path)
        return analysis

    def _check_versions(self, recorded: list[str], path: Path) -> None:
        """Refuse a stemmer or lemmatizer of another version that gives other words."""
        try:
            (text,) = recorded
            before = dict(json.loads(text))
        except (ValueError, TypeError, RecursionError):
            raise ModelFormatError(f"{path}: the versions of the text analysis are damaged") from None
        if before == self.versions:
            return
        pairs = list(self.readable.items())
        if not pairs:
            log.warning(
                "%s: trained with %s, installed: %s; the model has no words by which both can be compared", path,
                _shown(before), _shown(self.versions),
            )  # fmt: skip
        pairs = pairs[:: max(1, len(pairs) // CHECKED_WORDS)]
        found = self.analysed([form for _, form in pairs])
        for (word, form), now in zip(pairs, found, strict=True):
            if word != now:
                raise ModelFormatError(
                    f"{path}: '{form}' became '{word}' when the model was trained and becomes '{now}' here, so that "
                    f"predictions would differ; trained with {_shown(before)}, installed: {_shown(self.versions)}; "
                    "install the version of the training"
                )

    def __getstate__(self) -> tuple:
        return self.config, self.stop_words, self.lemmas, self.readable

    def __setstate__(self, state: tuple) -> None:
        config, stop_words, lemmas, readable = state
        self.__init__(config, stop_words, lemmas)  # type: ignore[misc]
        self.readable = readable


def registered_analyzer(name: str) -> tuple[Analyzer, str]:
    """The function that a package registers under this name, and the package with its version."""
    points = entry_points(group=GROUP)
    for point in points:
        if point.name == name:
            package = "unknown" if point.dist is None else f"{point.dist.name} {point.dist.version}"
            return point.load(), package
    names = sorted(point.name for point in points)
    known = did_you_mean(name, names) if names else "no installed package registers one"
    raise ConfigError(
        f"lemmatizer: no installed package registers '{name}' under the entry-point group {GROUP}; {known}"
    )


def _checked(found: list[str], count: int, name: str) -> list[str]:
    if not isinstance(found, list) or len(found) != count or not all(isinstance(word, str) for word in found):
        raise ConfigError(f"{name} must return a list with one str per word")
    return found


def _shown(versions: Mapping[str, str]) -> str:
    return ", ".join(map(str, versions.values())) or "none"


def _stop_words(config: TfidfConfig) -> frozenset[str]:
    given = config.stop_words
    if given is None:
        return frozenset()
    if isinstance(given, str):
        if given in STOP_WORDS:
            return STOP_WORDS[given]
        if not Path(given).is_file():
            raise ConfigError(
                f"stop_words: '{given}' is neither a file nor a language; {did_you_mean(given, STOP_WORDS)}"
            )
        given = [line.strip() for _, line in text_lines(given)]
    words = {word.lower() if config.lowercase else word for word in given if word}
    split = sorted(word for word in words if not _WORD.fullmatch(word))
    if split:
        log.warning(
            "stop_words: %s never occur as words (a word is two or more letters, digits or underscores): %s",
            f"{len(split):,}", ", ".join(split[:5]),
        )  # fmt: skip
    return frozenset(words.difference(split))


def _read_lemmas(path: Path, lowercase: bool) -> dict[str, str]:
    """Lemmas by form. A form that occurs again with another lemma is an error."""
    lemmas: dict[str, str] = {}
    for number, line in text_lines(path):
        if not line.strip():
            continue
        form, tab, lemma = ((line.lower() if lowercase else line).rstrip()).partition("\t")
        if not tab or not form or not lemma.strip():
            raise DataError(f"{line[:80]!r} is not form<TAB>lemma", path, number)
        if lemmas.setdefault(form, lemma) != lemma:
            raise DataError(f"'{form}' has the lemma '{lemmas[form]}' on an earlier line", path, number)
    if not lemmas:
        raise DataError("the file is empty; lines of form<TAB>lemma are needed", path)
    return lemmas


# --- rewriting ---
# Rewrite texts with analysed words, block by block: stems instead of words, without stop words.
#
# A `Rewriter` belongs to one thread at a time and remembers the words it has seen, so that Python sees each distinct
# word once. Rewriters share a cache of analysed words, and are kept between calls: a server does not stem a word twice.

MAX_WORDS = 4_000_000
"""Distinct words that a rewriter or the cache remembers before it starts over."""


class RewriterPool:
    """The rewriters of an analysis, and the cache they share."""

    def __init__(self, analysis: WordAnalysis) -> None:
        self.analysis = analysis
        self._cache: dict[str, str] = {}
        self._lock = threading.Lock()
        self._idle: list[Rewriter] = []

    def take(self) -> Rewriter:
        """A rewriter that no other thread has."""
        try:
            return self._idle.pop()
        except IndexError:
            return Rewriter(self)

    def give_back(self, rewriter: Rewriter) -> None:
        """Make a rewriter available to other calls."""
        if len(rewriter.table) <= MAX_WORDS:
            rewriter.occurrences = None
            self._idle.append(rewriter)

    def analysed(self, words: list[str]) -> list[str]:
        """What each word is counted as. Thread-safe."""
        with self._lock:
            if len(self._cache) > MAX_WORDS:
                self._cache.clear()
            cache = self._cache
            new = [word for word in words if word not in cache]
            cache.update(zip(new, self.analysis.analysed(new), strict=True))
            return [cache[word] for word in words]

    def keep_sample(self) -> None:
        """Let the analysis remember some of the words seen, by which a loaded model checks its stemmer."""
        with self._lock:
            forms = sorted((form, word) for form, word in self._cache.items() if word not in ("", form))
        step = max(1, len(forms) // CHECKED_WORDS)
        self.analysis.readable = {word: form for form, word in forms[::step]}


class Rewriter:
    """Replaces words of texts. `occurrences` counts each word of `table` once `count_words` was called."""

    def __init__(self, pool: RewriterPool) -> None:
        self.pool = pool
        self.table = TermTable()
        self.occurrences: np.ndarray | None = None
        self._replacements = np.empty(0, np.uint8)
        self._starts, self._ends = np.empty(0, np.int64), np.empty(0, np.int64)

    def count_words(self) -> None:
        """Count occurrences from now on."""
        self.occurrences = np.zeros(0, np.int64)

    def rewrite(self, texts: Strings, lowercase: bool) -> Strings:
        """The texts as analysed words, each followed by a blank."""
        numbers, row_ends = self._number(texts, lowercase)
        self._add_new_words()
        if self.occurrences is not None:
            counted = np.bincount(numbers, minlength=len(self.table))
            counted[: len(self.occurrences)] += self.occurrences
            self.occurrences = counted
        written, arrays = np.empty(len(texts), np.int64), (self._starts, self._ends, self._replacements)
        write_replacements(numbers, row_ends, *arrays, written, np.empty(0, np.uint8), False)
        buffer = np.empty(written[-1] if len(written) else 0, np.uint8)
        write_replacements(numbers, row_ends, *arrays, written, buffer, True)
        return Strings.packed(buffer, written)

    def counted_words(self) -> dict[str, tuple[str, int]]:
        """For each word seen what it is counted as, and how often it occurred since `count_words`."""
        words = list(self.table.spell(np.arange(len(self.table))))
        occurrences = np.zeros(0, np.int64) if self.occurrences is None else self.occurrences
        return {
            word: (analysed, times)
            for word, analysed, times in zip(words, self.pool.analysed(words), occurrences.tolist(), strict=False)
            if times
        }

    def _number(self, texts: Strings, lowercase: bool) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of all words, and where those of each text end."""
        lengths = texts.ends - texts.starts
        numbers = np.empty(int(lengths.sum()) + len(texts), np.int32)  # a lower-case text can be longer
        row_ends = np.empty(len(texts), np.int64)
        row, used = 0, 0
        while row < len(texts):
            status, done, used = self.table.number_words(texts[row:], lowercase, numbers, used, row_ends[row:])
            row += done
            if status == NEEDS_PYTHON:
                until = min(row + PYTHON_BATCH, len(texts))
                lowered = Strings.of([text.lower() for text in texts[row:until]])
                _, _, used = self.table.number_words(lowered, False, numbers, used, row_ends[row:until])
                row = until
        return numbers[:used], row_ends

    def _add_new_words(self) -> None:
        known = len(self._starts)
        if len(self.table) == known:
            return
        words = list(self.table.spell(np.arange(known, len(self.table))))
        new = Strings.of(self.pool.analysed(words)).compact()
        offset = len(self._replacements)
        self._replacements = np.concatenate([self._replacements, new.buffer])
        self._starts = np.concatenate([self._starts, new.starts + offset])
        self._ends = np.concatenate([self._ends, new.ends + offset])

"""Function words of some languages: articles, pronouns, prepositions, conjunctions, auxiliary verbs and the like.

Short lists of our own, in lower case; words that also carry a subject ("may", "will", "mine") are left out. Words of
one letter never count, and contractions are split at the apostrophe ("qu" of "qu'il" is therefore listed).
"""

from __future__ import annotations

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
